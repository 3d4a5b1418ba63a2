"""What the doctor says of machines that are not well."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagemill.cli.app import app
from pagemill.local import checks
from pagemill.local.checks import Verdict


def test_an_old_python_fails_with_advice() -> None:
    assert checks.python_check((3, 10, 4)).verdict is Verdict.FAIL
    assert "3.11" in checks.python_check((3, 10, 4)).advice
    assert checks.python_check((3, 12, 0)).verdict is Verdict.OK


def test_gpus() -> None:
    assert checks.gpu_check(["H200"], "12.8", has_driver=True).verdict is Verdict.OK
    assert checks.gpu_check([], None, has_driver=False).verdict is Verdict.OK
    assert "CUDA build" in checks.gpu_check([], None, has_driver=True).advice
    assert "nvidia-smi" in checks.gpu_check([], "12.8", has_driver=True).advice


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


def test_models(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    good.write_bytes(b"GGUF....")
    bad.write_bytes(b"<html>")
    assert checks.model_check(str(good)).verdict is Verdict.OK
    assert "not a GGUF file" in checks.model_check(str(bad)).found
    assert checks.model_check(str(tmp_path / "none")).verdict is Verdict.FAIL
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").touch()
    assert "no .safetensors" in checks.model_check(str(folder)).found
    (folder / "model.safetensors").write_bytes(b"x")
    assert checks.model_check(str(folder)).verdict is Verdict.OK


def test_a_port_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(checks, "DEFAULT_TARGET", f"127.0.0.1:{taken.getsockname()[1]}")
        assert checks.port_check().verdict is Verdict.WARN
    assert checks.port_check().verdict is Verdict.OK


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
