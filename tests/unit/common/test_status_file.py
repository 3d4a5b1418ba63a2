"""The status file."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from pagemill_common.status_file import StatusFile, StatusFileError


def test_file_exists_from_the_start_and_follows_every_change(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = StatusFile(path, "one")
    first = json.loads(path.read_text())
    assert first == {
        "stage": "starting",
        "fraction": 0.0,
        "ready": False,
        "address": None,
        "metrics_address": None,
        "name": "one",
        "pid": os.getpid(),
        "engine_pid": None,
        "error": None,
    }
    status.update(stage="weights", fraction=0.5)
    assert json.loads(path.read_text()) == first | {"stage": "weights", "fraction": 0.5}
    assert os.listdir(tmp_path) == ["status.json"], "no draft may be left"


def test_equal_status_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = StatusFile(path, "one")
    path.unlink()
    status.update(stage="starting")
    assert not path.exists()


def test_without_a_path_nothing_is_written() -> None:
    status = StatusFile(None, "one")
    status.update(ready=True)
    assert status.status.ready


@pytest.mark.parametrize("path", ["missing/status.json", "folder", "file/status.json"])
def test_a_file_that_cannot_be_written_at_the_start_is_an_error_that_names_the_flag(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StatusFileError, match=f"^--status-file {tmp_path / path}: [A-Z]"):
        StatusFile(tmp_path / path, "one")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"], "no draft may be left"


def test_a_file_that_cannot_be_written_later_is_logged_once_and_fails_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "status.json"
    status = StatusFile(path, "one")
    with caplog.at_level(logging.INFO, "pagemill.status"):
        path.unlink()
        folder.rmdir()
        status.update(stage="draining")
        status.update(stage="stopped")
        assert [record.message for record in caplog.records] == ["the status file cannot be written"]
        folder.mkdir()
        status.update(error="one more")
        assert json.loads(path.read_text())["stage"] == "stopped"
        path.unlink()
        folder.rmdir()
        status.update(stage="failed")
        assert len(caplog.records) == 2, "a failure after a success is another one"
