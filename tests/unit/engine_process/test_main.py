"""The order in which the engine process leaves after a failure."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from pagemill_common.telemetry import Telemetry
from pagemill_replica.engine.messages import FromEngine, Loading, Ready
from pagemill_replica.engine_process import main
from pagemill_replica.engine_process.config import EngineConfig
from pagemill_replica.engine_process.loop import EngineLoop


class Wire:
    def __init__(self) -> None:
        self.sent: list[FromEngine] = []

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)


class Watch:
    def __init__(self) -> None:
        self.is_serving = False

    def serving(self) -> None:
        self.is_serving = True

    def orphaned(self) -> bool:
        return False


def test_last_spans_are_sent_only_when_the_front_has_been_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that does not answer costs seconds, in which the front would take the engine for alive."""

    def break_down(_: EngineLoop) -> None:
        raise RuntimeError("the device broke")

    flushed: list[Telemetry] = []
    monkeypatch.setattr(EngineLoop, "run", break_down)
    monkeypatch.setattr(Telemetry, "shutdown", lambda telemetry: flushed.append(telemetry))
    wire: Any = Wire()
    watch: Any = Watch()
    with ExitStack() as at_exit:
        with pytest.raises(RuntimeError, match="device"):
            main._serve(EngineConfig(model_path="scripted:"), wire, watch, at_exit)
        assert watch.is_serving
        assert {type(message) for message in wire.sent} == {Loading, Ready}
        assert flushed == []
    assert len(flushed) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\n lines"), "ValueError: two lines"),
        (RuntimeError(), "RuntimeError: "),
        (MemoryError("no room"), "MemoryError: no room"),
    ],
)
def test_reason_of_a_failure_is_one_line(error: Exception, said: str) -> None:
    assert main._reason(error) == said
