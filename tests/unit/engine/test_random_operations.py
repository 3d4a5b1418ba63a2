"""Any order of arrivals, aborts, priorities, time and failures: the invariants hold and every answer is right.

The harness compares all books after every step, and every token with what its request gets alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pagemill_replica.engine.messages import EndReason

B = 4
EDGES = [1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 3 * B, 5 * B]


@dataclass(frozen=True)
class Arrive:
    prompt: int
    start: int
    max_tokens: int
    priority: int
    time_left: float | None
    salt: bytes
    min_tokens: int
    stops: bool
    replay: int


@dataclass(frozen=True)
class Abort:
    pick: int


@dataclass(frozen=True)
class Step:
    times: int


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Fail:
    pass


arrivals = st.builds(
    Arrive,
    prompt=st.sampled_from(EDGES),
    # Few beginnings, so that prefixes are shared.
    start=st.integers(0, 2),
    max_tokens=st.sampled_from([1, 2, B, 2 * B, 4 * B]),
    priority=st.integers(-1, 1),
    time_left=st.one_of(st.none(), st.sampled_from([0.0, 1.0, 5.0])),
    salt=st.sampled_from([b"", b"x"]),
    min_tokens=st.integers(0, 3),
    stops=st.booleans(),
    replay=st.integers(0, 3),
)
operations = st.lists(
    st.one_of(
        arrivals,
        arrivals,
        st.builds(Step, st.integers(1, 6)),
        st.builds(Step, st.integers(1, 6)),
        st.builds(Abort, st.integers(0, 30)),
        st.builds(Wait, st.sampled_from([0.5, 2.0])),
        st.builds(Fail),
    ),
    max_size=40,
)
shapes = st.fixed_dictionaries(
    {
        "blocks": st.integers(2, 12),
        "budget": st.sampled_from([3, 4, 7, 16, 64]),
        "max_running": st.sampled_from([1, 2, 3]),
        "watermark": st.sampled_from([0.0, 0.01, 0.3]),
        "context": st.sampled_from([B, 3 * B, 64]),
    }
)


def apply(engine: Any, operation: Any) -> None:
    match operation:
        case Arrive():
            stops = {"stop_token_ids": (1, 2, 3), "end_of_text_ids": (4, 5)} if operation.stops else {}
            prompt = [(operation.start * 11 + i) % 64 for i in range(operation.prompt)]
            key = engine._keys + 1
            fields = {
                "max_tokens": operation.max_tokens,
                "priority": operation.priority,
                "time_left": operation.time_left,
                "salt": operation.salt,
                "min_tokens": min(operation.min_tokens, operation.max_tokens),
                "seed": 5,
                **stops,
            }
            replay = min(operation.replay, operation.max_tokens) if not operation.stops else 0
            output = engine.alone(prompt, replay, seed=5)
            assert engine.submit(prompt, output=output, **fields) == key
        case Abort():
            keys = sorted(engine.requests)
            if keys:
                engine.abort(keys[operation.pick % len(keys)])
        case Step():
            for _ in range(operation.times):
                engine.step()
        case Wait():
            engine.clock.now += operation.seconds
        case Fail():
            engine.runner.errors = [RuntimeError("told to")]
            engine.step()
            engine.runner.errors = []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(shape=shapes, operations=operations)
@example(
    shape={"blocks": 3, "budget": 4, "max_running": 3, "watermark": 0.0, "context": 64},
    operations=[Arrive(B, 0, 2 * B, 0, None, b"", 0, False, 0)] * 3 + [Step(6)] * 5,
)
def test_random_operations(harness: Any, shape: dict[str, Any], operations: list[Any]) -> None:
    engine = harness(block_size=B, **shape)
    for operation in operations:
        apply(engine, operation)
    engine.run(max_steps=2000)
    for key, request in engine.requests.items():
        outputs = len(request.submit.output_ids) + len(request.tokens)
        match engine.reason(key):
            case EndReason.MAX_TOKENS:
                assert outputs == request.submit.stop.max_tokens
            case EndReason.CONTEXT_FULL:
                given_tokens = len(request.submit.prompt_ids) + len(request.submit.output_ids)
                assert given_tokens + len(request.tokens) == max(shape["context"], given_tokens)
            case EndReason.STOP_TOKEN | EndReason.END_OF_TEXT:
                assert request.tokens[-1] in (1, 2, 3, 4, 5)
                assert not {1, 2, 3, 4, 5} & set(request.tokens[:-1])
                assert outputs > request.submit.stop.min_tokens
            case EndReason.FAILED:
                assert any(isinstance(o, Fail) for o in operations)
            case EndReason.REJECTED:
                assert not request.tokens


@settings(max_examples=40, deadline=None)
@given(
    names=st.integers(1, 6),
    prompts=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(EDGES), st.sampled_from([b"", b"x"])), max_size=12),
    steps=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_colliding_hashes_never_change_an_answer(
    harness: Any, colliding: Any, names: int, prompts: list[tuple[int, int, bytes]], steps: list[int]
) -> None:
    engine = harness(block_size=B, blocks=10, hasher=colliding(names))
    for (token, length, salt), count in zip(prompts, steps, strict=False):
        engine.submit([token] * length, 6, salt=salt, seed=5)
        for _ in range(count):
            engine.step()
    engine.run()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.sampled_from(EDGES), min_size=1, max_size=10),
    blocks=st.integers(8, 12),
    watermark=st.sampled_from([0.0, 0.05]),
)
def test_without_aborts_everything_that_fits_is_answered_in_full_with_few_preemptions(
    harness: Any, lengths: list[int], blocks: int, watermark: float
) -> None:
    engine = harness(block_size=B, blocks=blocks, watermark=watermark, budget=16, context=8 * B)
    keys = [engine.submit([i % 3] * length, 3 * B) for i, length in enumerate(lengths)]
    engine.run()
    for key in keys:
        ended = engine.requests[key].ended
        assert ended.reason in (EndReason.MAX_TOKENS, EndReason.CONTEXT_FULL)
        # 2 + log2 of all that ten requests of eight blocks can grow by.
        assert ended.preemptions <= 2 + 6
