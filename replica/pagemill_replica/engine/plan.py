"""What one engine step computes: the narrow plain-data value between scheduler and runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pagemill_replica.engine.params import Sampling


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One request's share of a step: tokens [start, start + count) of prompt + output are computed."""

    key: int
    token_ids: list[int]
    """The `count` tokens to compute."""
    start: int
    """Position of the first of them."""
    block_table: list[int]
    """Block ids that hold positions [0, start + count), in order; more may follow."""
    samples: bool
    """The last of them is the sequence's newest token, so a next token is drawn."""
    sampling: Sampling
    prompt_ids: list[int]
    """For the repetition penalty. The runner reads, never keeps or changes it."""
    output_ids: list[int]
    """For penalties. The runner reads, never keeps or changes it."""
    masked_token_ids: tuple[int, ...] = ()
    """Ids that may not be drawn at this step: end of text and stop tokens while below min_tokens."""

    @property
    def count(self) -> int:
        """Tokens computed in this step."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `sequences` is never empty."""

    sequences: list[ScheduledSequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens computed in this step, at most the token budget."""
        return sum(s.count for s in self.sequences)


class Runner(Protocol):
    """Executes steps on a device. The KV cache is its own; blocks are named by id in [0, num_blocks)."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    def execute(self, plan: StepPlan) -> list[int | None]:
        """Computes the step; for each sequence the drawn token id, or None where it does not sample.

        Raises whatever the device raises; the engine ends the step's requests as FAILED then.
        """
        ...
