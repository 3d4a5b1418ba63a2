"""Settings from flags and environment, and what is said of wrong ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagemill_common.setting_values import (
    Address,
    AddressList,
    CommaList,
    Duration,
    Endpoint,
    ExistingPath,
    OutputFile,
    RedisUrl,
    Size,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
)
from pagemill_common.settings import Contradiction, LogFormat, Settings


class Tier(Settings):
    model_config = SettingsConfigDict(env_prefix="PAGEMILL_TIER_")
    program = "pagemill tier"
    summary = "For tests."

    listen: Address = Field("127.0.0.1:1", description="Where to listen.")
    memory: Size | None = Field(None, gt=0, description="Memory.")
    settle: Duration = Field(5.0, ge=0, description="Settling, 100% of it.")
    aliases: CommaList = Field((), description="Names.")
    replicas: AddressList = Field((), description="Replicas.")
    exact: bool = Field(False, description="Exact.")
    log_format: LogFormat = Field("auto", description="Form.")
    limit: int = Field(3, ge=1, description="Limit.")
    secret: str = Field("", description="Hidden.", json_schema_extra={"hidden": True})


def problems(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        Tier.parse(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("3g", 3 * 10**9),
        ("7B", 7),
        ("1tib", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30.0), ("10m", 600.0), ("2h", 7200.0), ("1d", 86400.0), ("1.5", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "-1", "1 parsec", "1GiBB", "1e3", "nan", "inf"])
def test_neither_size_nor_duration(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with pytest.raises(ValueError, match="write for example"):
            parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.25, "250ms"), (4.0, "4s"), (90.0, "90s"), (300.0, "5m"), (3600.0, "1h"), (1e-6, "0.000001s")],
)
def test_durations_are_shown_in_the_largest_whole_unit(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (1000, "1000"), (1024, "1KiB"), (3 << 20, "3MiB"), (1536, "1536")]
)
def test_sizes_are_shown_in_the_largest_whole_unit(size: int, text: str) -> None:
    assert show_size(size) == text


@given(st.floats(0, 1e6))
def test_what_is_shown_of_a_duration_reads_back(seconds: float) -> None:
    assert parse_duration(show_duration(round(seconds, 6))) == pytest.approx(round(seconds, 6))


@given(st.integers(0, 1 << 45))
def test_what_is_shown_of_a_size_reads_back(size: int) -> None:
    assert parse_size(show_size(size)) == size


def test_flags_of_every_kind() -> None:
    made = Tier.parse(
        [
            *("--listen", "[::]:80", "--memory=2GiB", "--settle", "250ms", "--aliases", "a, b,"),
            *("--replicas", "h:1,i:2", "--exact", "--log-format", "json", "--limit", "9"),
        ]
    )
    assert made.model_dump() == {
        "listen": "[::]:80",
        "memory": 2 << 30,
        "settle": 0.25,
        "aliases": ("a", "b"),
        "replicas": ("h:1", "i:2"),
        "exact": True,
        "log_format": "json",
        "limit": 9,
        "secret": "",
    }


def test_flag_beats_variable_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_TIER_LIMIT", "7")
    monkeypatch.setenv("PAGEMILL_TIER_ALIASES", "x,y")
    monkeypatch.setenv("PAGEMILL_TIER_EXACT", "true")
    monkeypatch.setenv("PAGEMILL_TIER_PORT", "tcp://10.0.0.1:80")
    made = Tier.parse(["--aliases", "z", "--no-exact"])
    assert (made.limit, made.aliases, made.exact, made.settle) == (7, ("z",), False, 5.0)


def test_all_wrong_values_are_named_by_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    said = problems(capsys, "--memory", "lots", "--limit", "0", "--replicas", "h", "--log-format", "xml")
    assert "--memory: 'lots' is not a size; write for example 2GiB" in said
    assert "--limit: Input should be greater than or equal to 1, not '0'" in said
    assert "--replicas: 'h' is not an address; write host:port" in said
    assert "--log-format: Input should be 'auto', 'json' or 'text'" in said


def test_wrong_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_TIER_LIMIT", "many")
    assert "PAGEMILL_TIER_LIMIT (or --limit)" in problems(capsys)


def test_unknown_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--lisen" in problems(capsys, "--lisen", "x:1")


def test_abbreviated_flag_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--lim" in problems(capsys, "--lim", "4")


def test_help_teaches_and_hides(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Tier.parse(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--settle DURATION Settling, 100% of it. [default: 5s] [PAGEMILL_TIER_SETTLE]" in text
    assert "--memory SIZE" in text
    assert "--listen HOST:PORT" in text
    assert "secret" not in text


def test_hidden_flag_works() -> None:
    assert Tier.parse(["--secret", "x"]).secret == "x"


def test_table_has_every_public_setting() -> None:
    rows = {row[0]: row for row in Tier.settings_table()}
    assert set(rows) == {
        *("--listen", "--memory", "--settle", "--aliases", "--replicas", "--exact", "--log-format", "--limit")
    }
    assert rows["--exact"] == ("--exact", "PAGEMILL_TIER_EXACT", "off", "Exact.")


def test_field_that_kubernetes_would_set_is_refused() -> None:
    with pytest.raises(TypeError, match="port"):

        class Bad(Settings):
            port: int = Field(1, description="x")


def test_field_without_description_is_refused() -> None:
    with pytest.raises(TypeError, match="description"):

        class Bad(Settings):
            limit: int = 1


@given(st.integers(0, 1 << 50))
def test_number_of_bytes_reads_back(size: int) -> None:
    assert parse_size(str(size)) == size


def test_the_documented_defaults_are_the_same_on_every_machine() -> None:
    class Made(Settings):
        place: str = Field(default_factory=lambda: f"{os.getpid()}", description="Where.")

    assert Made.settings_table()[0][2] == "computed"


class Places(Settings):
    program = "pagemill places"

    redis_url: RedisUrl | None = Field(None, description="Redis.")
    endpoint: Endpoint | None = Field(None, description="Receiver.")
    model: ExistingPath | None = Field(None, description="Model.")
    out: OutputFile | None = Field(None, description="File.")
    low: int = Field(1, ge=0, description="Low.")
    high: int = Field(2, ge=0, description="High.")

    def contradictions(self) -> Iterable[Contradiction]:
        if self.redis_url is None:
            yield Contradiction("redis_url", "needed")
        if self.low > self.high:
            yield Contradiction("low", "above --high", ("high",))


@pytest.mark.parametrize(
    "url",
    [
        *("redis://localhost:6379/0", "rediss://u:p@h:1/2", "unix:///run/redis.sock", "redis://h"),
        "redis://h:1/0?socket_timeout=2",
    ],
)
def test_redis_urls(url: str) -> None:
    assert Places.parse(["--redis-url", url]).redis_url == url


@pytest.mark.parametrize(
    "url",
    [
        *("notaurl", "localhost:6379", "http://h:1", "redis://h:many", "redis://:secret@h:99999999/0"),
        *("redis://h/x", "redis://h/0?colour=blue", "redis://:secret@[h"),
    ],
)
def test_what_is_no_redis_url_is_said_without_the_password(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Places.parse(["--redis-url", url])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "--redis-url: is not a Redis URL; write redis://host:6379/0" in said
    assert "secret" not in said


@pytest.mark.parametrize("endpoint", ["http://localhost:4317", "https://h", "collector:4317", "http://h:1/path"])
def test_endpoints(endpoint: str) -> None:
    assert Places.parse(["--redis-url", "redis://h", "--endpoint", endpoint]).endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["collector", "ftp://h:1", "http://", "http://h:x", ":1"])
def test_what_is_no_endpoint(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Places.parse(["--redis-url", "redis://h", "--endpoint", endpoint])
    assert f"--endpoint: {endpoint!r} is not an " in capsys.readouterr().err


def test_paths_that_cannot_be_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = ["--redis-url", "redis://h", "--model", str(tmp_path), "--out", str(tmp_path / "out")]
    assert Places.parse(right).model == tmp_path
    with pytest.raises(SystemExit):
        Places.parse([*right[:2], "--model", str(tmp_path / "gone"), "--out", str(tmp_path / "no" / "out")])
    said = capsys.readouterr().err
    assert "--model: '" in said
    assert "is not a file or folder that exists" in said
    assert "--out: '" in said
    assert "is not a file in a folder that exists" in said
    with pytest.raises(SystemExit):
        Places.parse([*right[:2], "--model", "x" * 300, "--out", str(tmp_path / ("x" * 300) / "out")])
    said = capsys.readouterr().err
    assert said.count("that exists") == 2, "names that are too long for the system are nothing that exists"


def test_contradictions_are_told_beside_wrong_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Places.parse(["--endpoint", "?", "--low", "5", "--high", "3"])
    said = capsys.readouterr().err
    assert said.splitlines()[:3] == [
        "pagemill places: --endpoint: '?' is not an address; write host:port, for example 127.0.0.1:8450",
        "pagemill places: --redis-url: needed",
        "pagemill places: --low: above --high",
    ]


def test_a_wrong_value_is_not_also_a_contradiction(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Places.parse(["--redis-url", "?", "--low", "5", "--high", "-3"])
    said = capsys.readouterr().err
    assert "needed" not in said
    assert "above" not in said


def test_a_contradiction_is_refused_without_a_command_line_too() -> None:
    with pytest.raises(ValueError, match="--low: above --high"):
        Places(redis_url="redis://h", low=5)
