"""Settings that contradict each other are named."""

from __future__ import annotations

import pytest

from pagemill_router.settings import RouterSettings


def test_replicas_and_redis_are_enough_apart() -> None:
    assert RouterSettings.parse(["--replicas", "a:1, b:2"]).replicas == ("a:1", "b:2")
    assert RouterSettings.parse(["--redis-url", "redis://h:1/0"]).pool == "default"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "--replicas"),
        (["--replicas", "nowhere"], "--replicas"),
        (["--replicas", "a:1", "--policy", "best"], "--policy"),
        (["--replicas", "a:1", "--default-timeout", "2h"], "--default-timeout"),
        (["--replicas", "a:1", "--queue-limit", "-1"], "--queue-limit"),
        (["--replicas", "a:1", "--listen", "here"], "--listen"),
        (["--redis-url", "notaurl"], "--redis-url: is not a Redis URL"),
    ],
)
def test_a_wrong_setting_is_named_and_ends_with_2(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        RouterSettings.parse(argv)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_all_that_is_wrong_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        RouterSettings.parse(["--policy", "foo", "--queue-limit", "-1", "--listen", "foo", "--default-timeout", "2h"])
    said = capsys.readouterr().err
    for flag in ("--policy", "--queue-limit", "--listen", "--default-timeout", "--replicas"):
        assert f"pagemill router: {flag}: " in said
