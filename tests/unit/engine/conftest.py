"""An engine around a made-up model, with every invariant checked after every step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pagemill_replica.engine.core import EngineCore
from pagemill_replica.engine.limits import EngineLimits
from pagemill_replica.engine.messages import Ended, EndReason, StepReport, Submit
from pagemill_replica.engine.params import Sampling, Stop
from pagemill_replica.engine.plan import StepPlan
from pagemill_replica.engine.testing import Script, ScriptedRunner, scripted_output


class Sha:
    """Hashes like the real encoding: no two prefixes share a name."""

    def root(self, salt: bytes) -> bytes:
        return hashlib.sha256(b"root" + salt).digest()

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        return hashlib.sha256(parent + repr(tuple(token_ids)).encode()).digest()


class Colliding(Sha):
    """Knows only `names` names, roots included."""

    def __init__(self, names: int) -> None:
        self._names = names

    def root(self, salt: bytes) -> bytes:
        return bytes([super().root(salt)[0] % self._names])

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        return bytes([super().child(parent, token_ids)[0] % self._names])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Request:
    """What a test asked for and what came of it."""

    submit: Submit
    tokens: list[int] = field(default_factory=list)
    cached: int | None = None
    ended: Ended | None = None


class CheckedRunner:
    """A scripted runner that looks at each plan before it executes it."""

    def __init__(self, harness: Harness, script: Script, blocks: int, block_size: int) -> None:
        self._harness = harness
        self._inner = ScriptedRunner(script, blocks, block_size)
        self.plans: list[StepPlan] = []
        self.errors: list[Exception] = []
        """Raised by the steps to come, instead of executing them."""
        self.violation: Exception | None = None
        """What was wrong with a plan. Kept aside, since the engine turns a runner's exceptions into failed requests."""

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    @property
    def block_size(self) -> int:
        return self._inner.block_size

    def execute(self, plan: StepPlan) -> list[int | None]:
        self.plans.append(plan)
        if self.errors:
            raise self.errors.pop(0)
        try:
            self._harness.check_plan(plan)
            return self._inner.execute(plan)
        except Exception as error:
            self.violation = error
            raise


class Harness:
    """Submits, steps, and compares all there is to compare."""

    def __init__(
        self,
        *,
        blocks: int = 8,
        block_size: int = 4,
        budget: int = 16,
        max_running: int = 8,
        context: int = 64,
        watermark: float = 0.01,
        hasher: Sha | None = None,
        script: Script | None = None,
    ) -> None:
        self.clock = Clock()
        self.script = script or Script(vocab=64)
        self.limits = EngineLimits(
            max_context_tokens=context,
            token_budget=budget,
            max_running=max_running,
            watermark=watermark,
            vocabulary_size=self.script.vocab,
        )
        self.runner = CheckedRunner(self, self.script, blocks, block_size)
        self.core = EngineCore(self.runner, hasher or Sha(), self.limits, self.clock)
        self.requests: dict[int, Request] = {}
        self.cache: set[bytes] = set()
        """Hashes in the prefix cache, as the events tell it."""
        self.held: dict[int, int] = {}
        self.reports: list[StepReport] = []
        self._keys = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        output: Sequence[int] = (),
        priority: int = 0,
        time_left: float | None = None,
        salt: bytes = b"",
        seed: int | None = None,
        min_tokens: int = 0,
        stop_token_ids: tuple[int, ...] = (),
        end_of_text_ids: tuple[int, ...] = (),
    ) -> int:
        self._keys += 1
        key = self._keys
        message = Submit(
            key=key,
            prompt_ids=list(prompt),
            sampling=Sampling(seed=key if seed is None else seed),
            stop=Stop(max_tokens, min_tokens, stop_token_ids, end_of_text_ids),
            output_ids=list(output),
            priority=priority,
            time_left=time_left,
            salt=salt,
        )
        self.requests[key] = Request(message)
        self.core.submit(message)
        self.core.check()
        return key

    def abort(self, key: int) -> None:
        self.core.abort(key)
        self.core.check()

    def step(self) -> StepReport:
        plans = len(self.runner.plans)
        had_work = self.core.has_work
        report = self.core.step()
        if self.runner.violation is not None:
            raise self.runner.violation
        self.reports.append(report)
        self.core.check()
        self._take(report)
        if had_work:
            assert len(self.runner.plans) > plans or report.ended, "a step neither progressed nor ended anything"
        assert report.stats.waiting + report.stats.running == self.core.live == len(self.live)
        return report

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until nothing is left, and finds the pool empty."""
        for _ in range(max_steps):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, f"still at work after {max_steps} steps"
        assert self.core.step().stats.used_blocks == 0
        self.core.check()

    @property
    def live(self) -> set[int]:
        return {k for k, r in self.requests.items() if r.ended is None}

    def expected(self, key: int, count: int) -> list[int]:
        """The first `count` output tokens of this request when it runs alone."""
        m = self.requests[key].submit
        masked = m.stop.end_of_text_ids + m.stop.stop_token_ids
        return scripted_output(
            m.prompt_ids, m.sampling, count, self.script, min_tokens=m.stop.min_tokens, masked_token_ids=masked
        )

    def alone(self, prompt: Sequence[int], count: int, seed: int) -> list[int]:
        """The first `count` output tokens of a prompt that nothing stops."""
        return scripted_output(prompt, Sampling(seed=seed), count, self.script)

    def reason(self, key: int) -> EndReason | None:
        ended = self.requests[key].ended
        return None if ended is None else ended.reason

    def check_plan(self, plan: StepPlan) -> None:
        size = self.runner.block_size
        assert plan.sequences
        assert plan.tokens <= self.limits.token_budget
        assert len(plan.sequences) <= self.limits.max_running
        keys = [s.key for s in plan.sequences]
        assert len(set(keys)) == len(keys)
        writers: dict[int, int] = {}
        for s in plan.sequences:
            request = self.requests[s.key]
            assert request.ended is None, "an ended request is computed"
            everything = s.prompt_ids + s.output_ids
            assert s.count >= 1
            assert s.token_ids == everything[s.start : s.start + s.count]
            assert s.samples == (s.start + s.count == len(everything))
            assert len(s.block_table) * size >= s.start + s.count
            for index in range(s.start // size, (s.start + s.count - 1) // size + 1):
                assert writers.setdefault(s.block_table[index], s.key) == s.key, "two sequences write one block"
        for s in plan.sequences:
            foreign = {b for b in s.block_table if b in writers and writers[b] != s.key}
            assert not foreign, "a block is written while another sequence holds it"

    def _take(self, report: StepReport) -> None:
        for tokens in report.tokens:
            request = self.requests[tokens.key]
            assert request.ended is None, "tokens after the end"
            assert request.cached in (None, tokens.cached_tokens), "cached_tokens changed"
            request.cached = tokens.cached_tokens
            request.tokens += tokens.token_ids
            replayed = request.submit.output_ids
            assert replayed + request.tokens == self.expected(tokens.key, len(replayed) + len(request.tokens))
        for ended in report.ended:
            request = self.requests[ended.key]
            assert request.ended is None, "ended twice"
            request.ended = ended
            self.held.pop(ended.key, None)
        assert self.cache.isdisjoint(report.stored)
        assert self.cache.issuperset(report.removed)
        self.cache = (self.cache | set(report.stored)) - set(report.removed)
        assert self.cache == set(self.core.cached_hashes)
        assert self.live.issuperset(report.held_blocks)
        self.held.update(report.held_blocks)
        if report.stats.running == 0:
            assert report.stats.used_blocks == 0
            assert not any(self.held.values())
        assert max(self.held.values(), default=0) <= report.stats.used_blocks <= self.runner.num_blocks


@pytest.fixture(scope="session")
def harness() -> type[Harness]:
    return Harness


@pytest.fixture(scope="session")
def colliding() -> type[Colliding]:
    return Colliding
