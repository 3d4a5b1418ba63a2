"""Looks at the machine: Python, torch and what it computes on, memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pagemill.local.verdicts import Check, Verdict

MIN_PYTHON = (3, 11)
SPARE_BYTES = 512 * 2**20
"""Memory that a replica needs beside weights and cache."""
TORCH_SECONDS = 120.0
"""Time for torch to load; a cold disk may need most of it."""


def python_check(version: tuple[int, ...]) -> Check:
    """Python is new enough."""
    found = ".".join(map(str, version))
    if version[:2] < MIN_PYTHON:
        return Check(
            "python", Verdict.FAIL, found, "install Python 3.11 or later and make a virtual environment with it"
        )
    return Check("python", Verdict.OK, f"{found} ({sys.executable})")


def torch_checks() -> list[Check]:
    """Torch loads, and what it can compute on. Asked in another process: a broken build may crash."""
    command = [sys.executable, "-c", _TORCH_PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        return [Check("torch", Verdict.FAIL, f"has not loaded after {TORCH_SECONDS:.0f} s", _REINSTALL)]
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        why = (done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"])[-1]
        return [Check("torch", Verdict.FAIL, f"does not load: {why}", _REINSTALL)]
    found = f"{facts['version']}, {facts['threads']} threads, CPU {facts['capability']}"
    has_driver = shutil.which("nvidia-smi") is not None
    return [Check("torch", Verdict.OK, found), gpu_check(facts["gpus"], facts["built_for"], has_driver)]


def gpu_check(gpus: list[str], built_for: str | None, has_driver: bool) -> Check:
    """GPUs that torch sees; none is fine."""
    if gpus:
        return Check("gpu", Verdict.OK, ", ".join(gpus))
    if has_driver and built_for is None:
        return Check("gpu", Verdict.WARN, "a driver is here, but torch is a CPU build", "install a CUDA build of torch")
    if has_driver:
        return Check("gpu", Verdict.WARN, "a driver is here, but torch sees no GPU", "see what nvidia-smi says")
    return Check("gpu", Verdict.OK, "none; replicas compute on the CPU")


def memory_check() -> Check:
    """Free memory, as a replica will find it."""
    free = _available_memory()
    if free is None:
        return Check("memory", Verdict.WARN, "cannot be read", "set --kv-memory")
    found = f"{free / 2**30:.1f} GiB available"
    if free < SPARE_BYTES:
        return Check("memory", Verdict.WARN, found, "close other programs, or set a small --kv-memory")
    return Check("memory", Verdict.OK, found)


_REINSTALL = "install it again: pip install --force-reinstall --no-deps torch"

_TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "capability": torch.backends.cpu.get_cpu_capability(),
    "built_for": torch.version.cuda or getattr(torch.version, "hip", None),
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
}))
"""


def _available_memory() -> int | None:
    """Bytes: the smaller of what the machine has left and what the control group has left; None: nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return _free_pages()
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, limit - used)


def _free_pages() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # macOS knows no such name.
        return None
