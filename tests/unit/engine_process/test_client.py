"""The front's side of an engine process, against real ones that run a made-up model."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from pagemill_replica.engine.messages import EndReason, Loading, StepReport, Submit
from pagemill_replica.engine.params import Sampling, Stop
from pagemill_replica.engine_process.client import EngineClient, EngineGoneError, EngineStartError
from pagemill_replica.engine_process.config import EngineConfig
from pagemill_replica.engine_process.loop import MAX_FAILED_STEPS

FAIL, EXIT = 1, 2
SCRIPT = f"low=10,delay=0.001,fail_id={FAIL},exit_id={EXIT}"


class Engine:
    """A client and all that it has told."""

    def __init__(self, script: str = SCRIPT, **fields: object) -> None:
        self.now = 100.0
        self.reports: list[StepReport] = []
        self.loading: list[Loading] = []
        self.exits: list[str] = []
        self.exited_with: list[int | None] = []
        """The process's status at the moment in which its end was told; None: it still ran."""
        self._changed = asyncio.Event()
        config = EngineConfig(model_path=f"scripted:{script}", **fields)  # type: ignore[arg-type]
        self.client = EngineClient(config, self._on_report, self._on_loading, self._on_exit, clock=lambda: self.now)

    def _on_report(self, report: StepReport) -> None:
        self.reports.append(report)
        self._changed.set()

    def _on_loading(self, loading: Loading) -> None:
        self.loading.append(loading)
        self._changed.set()

    def _on_exit(self, reason: str) -> None:
        self.exits.append(reason)
        assert self.client._process is not None
        self.exited_with.append(self.client._process.returncode)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @property
    def ended(self) -> dict[int, EndReason]:
        return {end.key: end.reason for report in self.reports for end in report.ended}

    def tokens(self, key: int) -> int:
        return sum(len(new.token_ids) for report in self.reports for new in report.tokens if new.key == key)

    def assert_gone(self) -> None:
        """Neither process nor zombie."""
        with pytest.raises(ProcessLookupError):
            os.kill(self.client.pid, 0)


def submit(key: int, *, first: int = 20, max_tokens: int = 8) -> Submit:
    return Submit(key, [first, 21, 22], Sampling(), Stop(max_tokens))


@pytest.fixture(autouse=True)
def sockets_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets are made; short, because the path of one must be. Whatever a test does, none may be left."""
    folder = Path(tempfile.mkdtemp(prefix="pm-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    left = list(folder.iterdir())
    shutil.rmtree(folder)
    assert left == []


async def test_request_runs_and_the_engine_leaves_when_told() -> None:
    engine = Engine()
    async with engine.client as client:
        assert client.alive
        assert client.pid not in (0, os.getpid())
        client.submit(submit(1))
        assert client.busy
        await engine.until(lambda: 1 in engine.ended)
        assert engine.ended == {1: EndReason.MAX_TOKENS}
        assert engine.tokens(1) == 8
        assert not client.busy
    assert not client.alive
    assert engine.exits == [], "it was told to"
    assert client._process is not None
    assert client._process.returncode == 0
    engine.assert_gone()
    assert engine.loading
    await client.stop(grace=0.0)


async def test_stop_ends_streams_as_aborted() -> None:
    engine = Engine()
    await engine.client.start()
    for key in (1, 2):
        engine.client.submit(submit(key, max_tokens=5000))
    await engine.until(lambda: engine.tokens(2) > 0)
    await engine.client.stop(grace=30.0)
    assert engine.ended == {1: EndReason.ABORTED, 2: EndReason.ABORTED}
    assert engine.exits == []
    engine.assert_gone()


async def test_abort_ends_one_request_and_repeating_it_does_nothing() -> None:
    engine = Engine()
    async with engine.client as client:
        client.submit(submit(1, max_tokens=5000))
        client.submit(submit(2, max_tokens=50))
        await engine.until(lambda: engine.tokens(1) > 0)
        for _ in range(3):
            client.abort(1)
        client.abort(77)
        await engine.until(lambda: len(engine.ended) == 2)
        assert engine.ended == {1: EndReason.ABORTED, 2: EndReason.MAX_TOKENS}
        client.abort(1)


async def test_engine_that_dies_in_a_step_is_told_once_and_at_once() -> None:
    engine = Engine()
    await engine.client.start()
    engine.client.submit(submit(1, max_tokens=5000))
    await engine.until(lambda: engine.tokens(1) > 0)
    engine.client.submit(submit(2, first=EXIT))
    await engine.until(lambda: bool(engine.exits))
    assert engine.exits == ["the engine process ended with status 70"]
    assert not engine.client.alive
    assert not engine.client.busy
    with pytest.raises(EngineGoneError):
        engine.client.submit(submit(3))
    engine.client.abort(1)
    await engine.client.stop(grace=0.0)
    assert len(engine.exits) == 1
    engine.assert_gone()


async def test_submit_and_abort_in_the_moment_of_death_are_no_other_error() -> None:
    """The connection is gone before the loop has had a turn in which to hear of the process's end."""
    engine = Engine()
    await engine.client.start()
    engine.client.submit(submit(1, max_tokens=5000))
    await engine.until(lambda: engine.tokens(1) > 0)
    os.kill(engine.client.pid, signal.SIGKILL)
    give_up = time.monotonic() + 30
    with pytest.raises(EngineGoneError):  # noqa: PT012 - it takes its connection some time to end
        for key in range(2, 1_000_000):
            engine.client.submit(submit(key))
            assert time.monotonic() < give_up
    engine.client.abort(1)
    assert engine.exits == [], "the loop has had no turn"
    await engine.until(lambda: bool(engine.exits))
    assert "SIGKILL" in engine.exits[0]
    await engine.client.stop(grace=0.0)


async def test_failure_is_taken_when_it_is_told_not_when_the_process_has_gone() -> None:
    """Here its exit is held up by a receiver of spans that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = Engine(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        await engine.client.start()
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        for key in range(1, MAX_FAILED_STEPS + 1):
            engine.client.submit(Submit(key, [FAIL], Sampling(), Stop(4), traceparent=parent))
            await engine.until(lambda: key in engine.ended)  # noqa: B023 - awaited within the turn
        await engine.until(lambda: bool(engine.exits))
        assert "steps in a row have failed" in engine.exits[0]
        assert engine.exited_with == [None]
        assert not engine.client.alive
        await engine.client.stop(grace=0.0)
    assert len(engine.exits) == 1
    engine.assert_gone()


async def test_engine_that_stands_still_is_busy_without_progress_and_is_stopped_by_force() -> None:
    engine = Engine()
    await engine.client.start()
    engine.client.submit(submit(1, max_tokens=2))
    await engine.until(lambda: 1 in engine.ended)
    os.kill(engine.client.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, engine.client.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222 - a signal is quick
    engine.now = 200.0
    engine.client.submit(submit(2))
    engine.now = 300.0
    engine.client.submit(submit(3))
    assert engine.client.busy
    assert engine.client.last_step_monotonic == 200.0
    await engine.client.stop(grace=0.05)
    assert set(engine.ended) == {1}
    assert engine.exits == []
    engine.assert_gone()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("low=9,vocab=3", "low 9 must be in"),
        ("nonsense", "is no setting of a scripted model"),
        ("context=1", "max_context_tokens"),
    ],
)
async def test_engine_that_cannot_start_says_why(script: str, said: str) -> None:
    engine = Engine(script)
    with pytest.raises(EngineStartError, match=said):
        await engine.client.start()
    assert engine.exits == []
    assert not engine.client.alive
    engine.assert_gone()
    with pytest.raises(EngineGoneError):
        engine.client.submit(submit(1))


async def test_engine_that_is_killed_while_it_loads_is_a_failed_start() -> None:
    engine = Engine("load_delay=600")
    starting = asyncio.create_task(engine.client.start())
    await engine.until(lambda: bool(engine.loading))
    os.kill(engine.client.pid, signal.SIGKILL)
    with pytest.raises(EngineStartError, match="SIGKILL"):
        await starting
    engine.assert_gone()


async def test_start_that_is_cancelled_ends_the_process() -> None:
    engine = Engine("load_delay=600")
    starting = asyncio.create_task(engine.client.start())
    await engine.until(lambda: bool(engine.loading))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    engine.assert_gone()


async def test_start_that_finds_no_room_for_sockets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(EngineStartError, match="/nowhere/at/all"):
        await Engine().client.start()


async def test_folder_whose_path_is_too_long_for_a_socket_is_replaced(
    sockets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = sockets_folder / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    engine = Engine()
    async with engine.client as client:
        client.submit(submit(1))
        await engine.until(lambda: 1 in engine.ended)
    deep.rmdir()


async def test_unreadable_frames_of_the_engine_harm_nobody() -> None:
    engine = Engine()
    async with engine.client as client:
        assert client._sockets is not None
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.connect(client._sockets.from_engine)
            for frame in (b"", b"\xff\xff", b"\x12 no report", b"\x01 no message of an engine"):
                stranger.send(frame)
            client.submit(submit(1))
            await engine.until(lambda: 1 in engine.ended)
        assert engine.ended == {1: EndReason.MAX_TOKENS}
        assert client.alive


async def test_fault_in_handling_one_report_does_not_keep_the_next_from_being_read() -> None:
    engine = Engine()
    async with engine.client as client:
        heard = client._on_report
        faults = iter([RuntimeError("once")])

        def faulty(report: StepReport) -> None:
            for fault in faults:
                raise fault
            heard(report)

        client._on_report = faulty
        client.submit(submit(1))
        await engine.until(lambda: 1 in engine.ended)
        assert engine.tokens(1) == 7


async def test_two_engines_hear_nothing_of_each_other() -> None:
    first, second = Engine(), Engine()
    async with first.client, second.client:
        first.client.submit(submit(1))
        second.client.submit(submit(2))
        await first.until(lambda: 1 in first.ended)
        await second.until(lambda: 2 in second.ended)
    assert (set(first.ended), set(second.ended)) == ({1}, {2})
