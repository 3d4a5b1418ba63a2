"""The engine learns that its front is gone, and leaves also where it is stuck."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = "watch = OrphanWatch(0, 60.0); print('up', flush=True); threading.Event().wait()"
SERVING = """
watch = OrphanWatch(0, 60.0)
watch.serving()
print('up', flush=True)
while not watch.orphaned():
    time.sleep(0.001)
watch.leaving()
print('orphaned', flush=True)
"""
STUCK = "watch = OrphanWatch(0, 0.01); watch.serving(); print('up', flush=True); threading.Event().wait()"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [(BEFORE, 1, ""), (SERVING, 0, "orphaned\n"), (STUCK, 1, "")],
    ids=["loading", "ok", "stuck"],
)
def test_end_of_the_front_ends_the_engine(code: str, status: int, said: str) -> None:
    head = "import threading, time\nfrom pagemill_replica.engine_process.orphan import OrphanWatch\n"
    child = subprocess.Popen(
        [sys.executable, "-c", head + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    assert child.poll() is None
    rest, _ = child.communicate(timeout=30)
    assert (child.returncode, rest) == (status, said)
