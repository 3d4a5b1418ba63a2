"""How many blocks a request will need, and how much output to expect of it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Protocol


def need_blocks(prompt_tokens: int, expected_output: int, block_size: int, held_hit_blocks: int = 0) -> int:
    """ceil((prompt + expected output) / block) less hit blocks that live requests hold, at least 1.

    Only hits that live requests hold count: one on an idle cached block still takes that block from the pool. A full
    hit leaves the last token to compute, so a request never needs nothing.
    """
    if block_size < 1 or prompt_tokens < 0 or expected_output < 0 or held_hit_blocks < 0:
        raise ValueError(
            "prompt_tokens, expected_output and held_hit_blocks must not be negative, block_size at least 1"
        )
    return max(-(-(prompt_tokens + expected_output) // block_size) - held_hit_blocks, 1)


class ExpectedOutput(Protocol):
    """A policy for the output tokens that admission counts on."""

    def expect(self, model: str, tenant: str, max_tokens: int) -> int:
        """Tokens in [1, max_tokens] (max_tokens at least 1)."""
        ...

    def observe(self, model: str, tenant: str, output_tokens: int) -> None:
        """An answer of this length has ended by itself."""
        ...


class FullMaxTokens:
    """Counts on all of max_tokens: no replica is ever over-committed, and much of its memory stays idle where answers
    are short.
    """

    def expect(self, model: str, tenant: str, max_tokens: int) -> int:
        """All of them."""
        return max(max_tokens, 1)

    def observe(self, model: str, tenant: str, output_tokens: int) -> None:
        """Nothing to learn."""


class RunningQuantile:
    """Counts on a quantile of the latest answers of the same model and tenant, never more than max_tokens.

    A lower quantile fills replicas better and lets more requests outgrow their admission, which the engine answers
    with preemption. Until `min_samples` answers are known it counts on max_tokens. Holds `window` lengths for each of
    the latest `max_keys` pairs of model and tenant. Answers that a limit cut short count with their cut length, so
    limits set by callers pull the quantile down.
    """

    def __init__(
        self, quantile: float = 0.9, *, window: int = 512, min_samples: int = 32, max_keys: int = 1024
    ) -> None:
        if not 0 < quantile <= 1:
            raise ValueError("quantile must be in (0, 1]")
        if not 1 <= min_samples <= window or max_keys < 1:
            raise ValueError("min_samples must be in [1, window], max_keys at least 1")
        self._quantile = quantile
        self._window = window
        self._min_samples = min_samples
        self._max_keys = max_keys
        self._lengths: OrderedDict[tuple[str, str], tuple[deque[int], list[int]]] = OrderedDict()

    def expect(self, model: str, tenant: str, max_tokens: int) -> int:
        """The smallest known length that at least `quantile` of the answers do not exceed."""
        limit = max(max_tokens, 1)
        known = self._lengths.get((model, tenant))
        if known is None or len(known[1]) < self._min_samples:
            return limit
        in_order = known[1]
        return min(max(in_order[math.ceil(self._quantile * len(in_order)) - 1], 1), limit)

    def observe(self, model: str, tenant: str, output_tokens: int) -> None:
        """Takes one more length and forgets the oldest beyond the window."""
        key = (model, tenant)
        recent, in_order = self._lengths.setdefault(key, (deque(), []))
        self._lengths.move_to_end(key)
        recent.append(output_tokens)
        insort(in_order, output_tokens)
        if len(recent) > self._window:
            del in_order[bisect_left(in_order, recent.popleft())]
        if len(self._lengths) > self._max_keys:
            self._lengths.popitem(last=False)
