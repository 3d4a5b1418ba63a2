"""The local stack starts, watches and ends its children, whatever happens. The tiers here are small stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pagemill.cli.failures import ExitCode
from pagemill.local.spec import StackSpec
from pagemill.local.stack import LocalStack, StackError, answers_ping
from pagemill.local.status import TierStatus

STAND_IN = """
import json, os, signal, subprocess, sys, time
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, path, folder = args["--name"], args["--status-file"], os.environ["STAND_IN"]
mode = os.environ.get("MODE_" + name.replace("-", "_"), "")
def tell(**fields):
    with open(path + ".new", "w") as file:
        json.dump({"name": name, "pid": os.getpid(), **fields}, file)
    os.replace(path + ".new", path)
def stop(number, frame):
    with open(os.path.join(folder, "stops"), "a") as file:
        file.write(name + "\\n")
    if mode != "stubborn":
        raise SystemExit(0)
signal.signal(signal.SIGTERM, stop)
open(os.path.join(folder, name + ".args"), "w").write("\\n".join(sys.argv[1:]))
open(os.path.join(folder, name + ".pid"), "w").write(str(os.getpid()))
if mode == "forks":
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
    child = subprocess.Popen([sys.executable, "-c", deaf])
    open(os.path.join(folder, name + ".child"), "w").write(str(child.pid))
tell(stage="weights", fraction=0.5)
if mode == "fails":
    print("first line of the log")
    print("out of memory", flush=True)
    tell(stage="weights", error="no memory for the KV cache")
    raise SystemExit(3)
while mode == "waits":
    time.sleep(0.05)
tell(stage="ready", fraction=1.0, ready=True, address="127.0.0.1:4" + name[-1], engine_pid=os.getpid())
if mode == "dies":
    while not os.path.exists(os.path.join(folder, "die")):
        time.sleep(0.01)
    raise SystemExit(4)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts stand-ins before the real tiers; their marks go into the folder."""
    for package in ("pagemill_router", "pagemill_replica"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    # Logs that a failed stack keeps go with the test.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def spec(**changes: object) -> StackSpec:
    settings = {"model": Path("m.gguf"), "model_name": "m", "redis_url": "redis://127.0.0.1:1/0", **changes}
    return StackSpec(**settings)  # type: ignore[arg-type]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("*.pid")]


def test_a_stack_starts_reports_and_leaves_nothing(stand_ins: Path) -> None:
    seen: list[tuple[str, TierStatus]] = []
    with LocalStack(spec(replicas=2, routers=1), lambda name, status: seen.append((name, status))) as stack:
        stack.start()
        stack.check()
        assert stack.router_addresses == ["127.0.0.1:40"]
        assert stack.replica_addresses == ["127.0.0.1:40", "127.0.0.1:41"]
        assert stack.pids.keys() == {"replica-0", "replica-0 engine", "replica-1", "replica-1 engine", "router-0",
                                     "router-0 engine"}  # fmt: skip
        running = pids(stand_ins)
        assert len(running) == 3
        assert all(alive(pid) for pid in running)
        folder = stack.folder
        assert folder.exists()
    assert not any(alive(pid) for pid in running)
    assert not folder.exists()
    assert (stand_ins / "stops").read_text().splitlines()[0] == "router-0", "routers go first"
    ready = {name for name, status in seen if status.ready}
    assert ready == {"replica-0", "replica-1", "router-0"}


def test_flags_say_what_was_asked(stand_ins: Path) -> None:
    asked = spec(replicas=2, dtype="float32", deterministic=True, policy="round_robin", kv_memory="64MiB", threads=3)
    with LocalStack(asked, lambda *_: None) as stack:
        stack.start()
    replica = (stand_ins / "replica-1.args").read_text().splitlines()
    pairs = dict(zip(replica[::2], replica[1::2], strict=False))
    assert pairs["--model"] == "m.gguf"
    assert pairs["--dtype"] == "float32"
    assert pairs["--threads"] == "3"
    assert pairs["--listen"] == "127.0.0.1:0"
    assert pairs["--redis-url"] == "redis://127.0.0.1:1/0"
    assert "--deterministic" in replica
    assert "--kv-memory\n64MiB" in "\n".join(replica)
    router = (stand_ins / "router-0.args").read_text()
    assert "--policy\nround_robin" in router


def test_a_child_that_fails_at_start_is_told_with_its_log(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE_replica_1", "fails")
    stack = LocalStack(spec(replicas=2), lambda *_: None)
    with pytest.raises(StackError) as caught, stack:
        stack.start()
    assert "replica-1 ended with status 3: no memory for the KV cache" in caught.value.message
    assert caught.value.tail[-1] == "out of memory"
    assert (caught.value.folder / "replica-1.log").exists(), "logs are kept where something failed"
    assert not any(alive(pid) for pid in pids(stand_ins))


def test_a_child_that_dies_later_is_noticed(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE_router_0", "dies")
    with LocalStack(spec(), lambda *_: None) as stack:
        stack.start()
        (stand_ins / "die").touch()

        def died() -> bool:
            try:
                stack.check()
            except StackError as error:
                return "router-0 ended with status 4" in error.message
            return False

        until(died, "the death is noticed")


def test_stubborn_children_and_their_children_end_too(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagemill.local.stack.STOP_SECONDS", 0.3)
    monkeypatch.setenv("MODE_replica_0", "stubborn")
    monkeypatch.setenv("MODE_router_0", "forks")
    with LocalStack(spec(), lambda *_: None) as stack:
        stack.start()
        grandchild = int((stand_ins / "router-0.child").read_text())
        running = [*pids(stand_ins), grandchild]
        assert all(alive(pid) for pid in running)
    until(lambda: not any(alive(pid) for pid in running), "all have ended")
    assert (stand_ins / "stops").read_text().splitlines().count("replica-0") == 2, "asked to drain, then to hurry"


def test_the_embedded_redis_comes_and_goes(stand_ins: Path) -> None:
    with LocalStack(spec(redis_url=None), lambda *_: None) as stack:
        stack.start()
        port = int(stack.redis_url.rpartition(":")[2].removesuffix("/0"))
        assert answers_ping(port)
        assert f"--redis-url\n{stack.redis_url}" in (stand_ins / "replica-0.args").read_text()
    assert not answers_ping(port)


SERVE = [sys.executable, "-c", "from pagemill.cli import main; main()", "serve", "--port", "0"]


@pytest.fixture
def serving(stand_ins: Path) -> Iterator[subprocess.Popen[str]]:
    """`pagemill serve` as a process, once it is ready, with an embedded Redis."""
    model = stand_ins / "m.gguf"
    model.write_bytes(b"GGUF")
    process = subprocess.Popen(
        [*SERVE, "--replicas", "2", "--model", str(model), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def ready_line(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    found: dict[str, object] = json.loads(line)
    return found


def all_pids(found: dict[str, object]) -> list[int]:
    known = found["pids"]
    assert isinstance(known, dict)
    below = [child.pid for pid in known.values() for child in psutil.Process(pid).children(recursive=True)]
    return [*known.values(), *below]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_serve_prints_where_it_is_and_stops_cleanly(serving: subprocess.Popen[str], number: signal.Signals) -> None:
    found = ready_line(serving)
    assert found["routers"] == ["127.0.0.1:40"]
    assert found["model"] == "m"
    running = all_pids(found)
    assert len(set(running)) >= 4
    serving.send_signal(number)
    _, err = serving.communicate(timeout=60)
    assert serving.returncode == ExitCode.OK
    assert "Traceback" not in err
    assert not any(alive(pid) for pid in running)
    assert not Path(str(found["logs"])).exists()


def test_children_do_not_outlive_a_parent_that_is_killed(serving: subprocess.Popen[str]) -> None:
    running = all_pids(ready_line(serving))
    serving.kill()
    serving.wait()
    until(lambda: not any(alive(pid) for pid in running), "the children have ended")


def test_serve_ends_with_7_where_a_child_dies(serving: subprocess.Popen[str]) -> None:
    found = ready_line(serving)
    known = found["pids"]
    assert isinstance(known, dict)
    os.kill(known["replica-1"], signal.SIGKILL)
    _, err = serving.communicate(timeout=60)
    assert serving.returncode == ExitCode.START
    assert "replica-1 was ended by SIGKILL" in err
    assert f"logs are kept in {found['logs']}" in err.replace("\n", " ")


def test_an_impatient_second_ctrl_c_leaves_nothing(stand_ins: Path, serving: subprocess.Popen[str]) -> None:
    running = all_pids(ready_line(serving))
    for _ in range(3):
        serving.send_signal(signal.SIGINT)
        time.sleep(0.02)
    serving.communicate(timeout=60)
    assert not any(alive(pid) for pid in running)


def test_a_run_that_is_interrupted_says_once_that_it_stopped(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE_replica_0", "waits")
    (stand_ins / "m.gguf").write_bytes(b"GGUF")
    command = [*SERVE[:3], "run", "--model", str(stand_ins / "m.gguf"), "--redis-url", "redis://127.0.0.1:1/0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("replica-0: weights" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.splitlines()[-1] == "stopped."
    assert err.count("stopped") == 1
    assert not any(alive(pid) for pid in pids(stand_ins))


def test_tiers_get_all_their_arguments(stand_ins: Path) -> None:
    for package in ("pagemill_router", "pagemill_replica"):
        (stand_ins / package / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    for tier in ("router", "replica"):
        command = [*SERVE[:3], tier, "--help", "--listen", "x:1", "-x", "--", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == "['--help', '--listen', 'x:1', '-x', '--', '--json']\n"


def test_a_missing_model_is_told_before_anything_starts(stand_ins: Path) -> None:
    done = subprocess.run([*SERVE, "--model", "no-such-model"], capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.START
    assert "no model 'no-such-model'" in done.stderr
    assert not pids(stand_ins)
