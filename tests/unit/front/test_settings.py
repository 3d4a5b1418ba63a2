"""Settings of a replica: what contradicts itself, or can never be, is named before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill_replica.settings import ReplicaSettings

MODEL = str(Path(__file__).parent)
"""Something that exists."""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--model: name a GGUF file"),
        (["--default-timeout", "601"], "--default-timeout: longer than --max-stream-seconds"),
        (["--token-budget", "8", "--max-running", "9"], "--token-budget: 8 is below --max-running"),
        (["--max-running", "513"], "--token-budget: 512 is below --max-running"),
        (["--listen", "0.0.0.0:1", "--redis-url", "redis://r"], "--advertise: needed"),
        (["--stall-exit", "59s"], "--stall-exit: shorter than --stall-after"),
        (["--name", "a b"], "--name: String should match"),
        (["--model", "/nope.gguf"], "--model: '/nope.gguf' is not a file or folder that exists"),
        (["--device", "cuda"], "--device: Input should be 'cpu'"),
        (["--dtype", "float16"], "--dtype: Input should be 'auto', 'float32' or 'bfloat16'"),
        (["--redis-url", "notaurl"], "--redis-url: is not a Redis URL"),
        (["--otlp-endpoint", "nowhere"], "--otlp-endpoint: 'nowhere' is not an address"),
        (["--status-file", "/no/such/folder/file"], "--status-file: "),
    ],
)
def test_settings_that_do_not_go_together_are_named(
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        ReplicaSettings.parse([*(["--model", MODEL] if flags else []), *flags])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        (["--listen", "127.0.0.1:0"], "127.0.0.1:77"),
        (["--listen", "0.0.0.0:0", "--advertise", "10.0.0.1:0"], "10.0.0.1:77"),
        (["--listen", "0.0.0.0:0", "--advertise", "pod:99"], "pod:99"),
    ],
)
def test_address_told_to_routers(flags: list[str], address: str) -> None:
    assert ReplicaSettings.parse(["--model", MODEL, *flags]).advertised(77) == address


def test_served_name_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "Small-1.gguf").touch()
    assert ReplicaSettings.parse(["--model", str(tmp_path / "Small-1.gguf")]).served_name == "Small-1"


def test_a_hanging_engine_is_given_up_on_after_three_times_the_stall_limit_unless_told_otherwise() -> None:
    assert ReplicaSettings.parse(["--model", MODEL, "--stall-after", "7s"]).hang_limit == 21.0
    assert ReplicaSettings.parse(["--model", MODEL, "--stall-exit", "2m"]).hang_limit == 120.0
