"""The status file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pagemill_common.status_file import StatusFile


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
