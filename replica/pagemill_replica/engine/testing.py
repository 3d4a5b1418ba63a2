"""A made-up model without weights: a runner whose output is reproducible and depends on every token before it.

Each slot of its KV cache holds a digest of the whole prefix up to there, made from the slot before it as the block
table names it. A wrong block, a stale prefix or a skipped token therefore changes every token drawn after it, while a
step costs a few arithmetic operations a token. The process edge runs it in place of a model where EngineConfig names a
script; see `Script` for what it can be told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields

from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan

_MASK = (1 << 64) - 1
_UNWRITTEN = -1


@dataclass(frozen=True, slots=True)
class Script:
    """What the made-up model is and does. As text: `vocab=512,delay=0.01`."""

    vocab: int = 512
    """Token ids are below this."""
    low: int = 0
    """The lowest id it draws, to stay clear of special tokens."""
    blocks: int = 1024
    """Blocks in the KV cache."""
    context: int = 8192
    """Most tokens of prompt and output where the configuration does not say."""
    delay: float = 0.0
    """Seconds that a step takes."""
    token_delay: float = 0.0
    """Further seconds for each token computed."""
    load_delay: float = 0.0
    """Seconds that loading takes."""
    end_id: int = -1
    """The end-of-text token it draws; below 0: none."""
    end_every: int = 0
    """Draws end_id once in about so many tokens; 0: never."""
    fail_id: int = -1
    """A step that computes this id fails."""
    exit_id: int = -1
    """The process dies in the step that computes this id."""
    hang_id: int = -1
    """The step that computes this id never ends."""

    @classmethod
    def parse(cls, text: str) -> Script:
        """Reads `name=value` pairs set apart by commas. Raises ValueError naming the pair at fault."""
        known = {f.name: float if f.type == "float" else int for f in fields(cls)}
        values: dict[str, float] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = pair.partition("=")
            try:
                values[name] = known[name](value)
            except (KeyError, ValueError):
                raise ValueError(f"{pair!r} is no setting of a scripted model; there are {', '.join(known)}") from None
        script = cls(**values)  # type: ignore[arg-type]
        if not 0 <= script.low < script.vocab:
            raise ValueError(f"low {script.low} must be in [0, vocab {script.vocab})")
        return script


def _mix(state: int, token_id: int) -> int:
    state = ((state ^ (token_id + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) & _MASK
    return state ^ (state >> 29)


def _draw(state: int, sampling: Sampling, masked: Collection[int], script: Script) -> int:
    """The token after the prefix whose digest is `state`."""
    if sampling.temperature > 0:
        state = _mix(_mix(state, sampling.seed), sampling.choice_index)
    # Far fewer ids can be masked than a vocabulary has; the bound is for vocabularies of a handful.
    for _ in range(64 + 16 * script.vocab):
        state = _mix(state, 1)
        ends = script.end_every > 0 and script.end_id >= 0 and (state >> 40) % script.end_every == 0
        token_id = script.end_id if ends else script.low + (state >> 8) % (script.vocab - script.low)
        if token_id not in masked and token_id not in sampling.banned_token_ids:
            return token_id
    raise RuntimeError("every token is masked")


def scripted_output(
    prompt_ids: Sequence[int],
    sampling: Sampling,
    count: int,
    script: Script,
    *,
    min_tokens: int = 0,
    masked_token_ids: Collection[int] = (),
) -> list[int]:
    """The first `count` tokens that the made-up model draws after a prompt, found without paging or batching."""
    state = 0
    for token_id in prompt_ids:
        state = _mix(state, token_id)
    output: list[int] = []
    while len(output) < count:
        masked = masked_token_ids if len(output) < min_tokens else ()
        output.append(_draw(state, sampling, masked, script))
        state = _mix(state, output[-1])
    return output


class ScriptedRunner:
    """Implements `engine.plan.Runner`."""

    def __init__(
        self, script: Script, num_blocks: int, block_size: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._script = script
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._sleep = sleep
        self._slots = [_UNWRITTEN] * (num_blocks * block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    def execute(self, plan: StepPlan) -> list[int | None]:
        """Computes the step. Raises RuntimeError where the script says so or the plan reads what nobody wrote."""
        seconds = self._script.delay + self._script.token_delay * plan.tokens
        if seconds > 0:
            self._sleep(seconds)
        return [self._execute_one(scheduled) for scheduled in plan.sequences]

    def _execute_one(self, scheduled: ScheduledSequence) -> int | None:
        table, size, slots = scheduled.block_table, self._block_size, self._slots
        position = scheduled.start
        state = 0
        if position:
            state = slots[table[(position - 1) // size] * size + (position - 1) % size]
            if state == _UNWRITTEN:
                raise RuntimeError(f"request {scheduled.key} reads position {position - 1}, which nobody wrote")
        for token_id in scheduled.token_ids:
            self._act_on(token_id)
            state = _mix(state, token_id)
            slots[table[position // size] * size + position % size] = state
            position += 1
        if not scheduled.samples:
            return None
        return _draw(state, scheduled.sampling, scheduled.masked_token_ids, self._script)

    def _act_on(self, token_id: int) -> None:
        script = self._script
        if not 0 <= token_id < script.vocab:
            raise RuntimeError(f"token id {token_id} is outside the vocabulary of {script.vocab}")
        if token_id == script.fail_id:
            raise RuntimeError("the script says to fail")
        if token_id == script.exit_id:
            os._exit(70)
        while token_id == script.hang_id:
            self._sleep(60.0)
