"""What the front tells the engine process at its start, and how that is checked."""

from __future__ import annotations

import msgspec
import pytest

from pagemill_replica.engine_process.build import build_engine
from pagemill_replica.engine_process.config import EngineConfig, Launch
from pagemill_replica.engine_process.device import step_limits
from pagemill_replica.engine_process.main import LoadingMessages


def test_launch_comes_back_equal_from_one_line_of_json() -> None:
    config = EngineConfig(model_path="/a b/é\n.gguf", kv_memory_bytes=2**40, max_context=4096, watermark=0.02)
    line = msgspec.json.encode(Launch(config=config, to_engine="ipc:///a", from_engine="ipc:///b"))
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Launch).config == config


@pytest.mark.parametrize("line", [b"", b"{}", b'{"config": {}, "to_engine": 1, "from_engine": ""}', b"\xff"])
def test_launch_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        msgspec.json.decode(line, type=Launch)


@pytest.mark.parametrize(
    ("path", "fake", "vocab"),
    [("scripted:vocab=9", "", 9), ("/model.gguf", "vocab=7", 7), ("/model.gguf", "", None)],
)
def test_script_stands_in_the_path_or_beside_it(path: str, fake: str, vocab: int | None) -> None:
    script = EngineConfig(model_path=path, fake_runner=fake).script
    assert (None if script is None else script.vocab) == vocab


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_path": "scripted:speed=1"}, "'speed=1' is no setting"),
        ({"model_path": "scripted:vocab=x"}, "'vocab=x' is no setting"),
        ({"model_path": "scripted:", "max_context": 1}, "max_context_tokens must be at least 2"),
        ({"model_path": "scripted:", "max_running": -1}, "max_running must be at least 1"),
        ({"model_path": "scripted:", "token_budget": 4, "max_running": 8}, "token_budget 4 is below max_running 8"),
        ({"model_path": "scripted:", "watermark": 1.0}, "watermark must be in"),
    ],
)
def test_wrong_setting_is_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_engine(EngineConfig(**fields), lambda stage, fraction: None, lambda: 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "budget", "running"),
    [
        ({}, 512, 256),
        ({"device": "cuda:1"}, 2048, 256),
        ({"device": "unheard-of"}, 512, 256),
        ({"token_budget": 64}, 64, 64),
        ({"token_budget": 64, "max_running": 8}, 64, 8),
    ],
)
def test_limits_that_nobody_set_suit_the_device(fields: dict[str, object], budget: int, running: int) -> None:
    config = EngineConfig(model_path="m", **fields)  # type: ignore[arg-type]
    limits = step_limits(config, max_context=128, vocabulary_size=10)
    assert (limits.token_budget, limits.max_running, limits.max_context_tokens) == (budget, running, 128)


def test_built_engine_says_what_it_can_hold() -> None:
    config = EngineConfig(model_path="scripted:blocks=4,context=1000", block_size=8, max_context=500)
    stages: list[str] = []
    ready = build_engine(config, lambda stage, fraction: stages.append(stage), lambda: 0.0).ready
    assert (ready.num_blocks, ready.block_size, ready.max_context_tokens) == (4, 8, 500)
    assert ready.max_request_tokens == 32
    assert stages


def test_progress_is_told_some_times_a_second_and_of_each_stage_first_and_last() -> None:
    sent, now = [], [0.0]  # type: ignore[var-annotated]
    tell = LoadingMessages(sent.append, lambda: now[0], every=0.1)
    for hundredth in range(101):
        now[0] = hundredth / 1000
        tell("weights", hundredth / 100)
    tell("warming up", 0.0)
    assert [(m.stage, m.fraction) for m in sent] == [("weights", 0.0), ("weights", 1.0), ("warming up", 0.0)]
