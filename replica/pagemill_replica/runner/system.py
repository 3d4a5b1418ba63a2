"""What the system grants this process: memory and processors, limits of control groups included.

Reads files only; their roots are arguments so that tests can lay them out. cgroup v2 and v1:
https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""cgroup v1 says "no limit" with a number near 2^63."""


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes this process can still take: the least of the machine's and of every enclosing control group's."""
    return min([_machine_memory(proc), *_group_memory(proc, cgroup)])


def available_processors(proc: Path = PROC, cgroup: Path = CGROUP, affinity: int | None = None) -> int:
    """Processors this process may keep busy: its affinity, or fewer where a control group has a quota; at least 1."""
    allowed = _affinity() if affinity is None else affinity
    return max(1, min([allowed, *(math.ceil(quota) for quota in _group_processors(proc, cgroup))]))


def _affinity() -> int:
    """Processors that the scheduler may put this process on; all where the system does not limit them (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _machine_memory(proc: Path) -> int:
    text = _read(proc / "meminfo")
    for line in (text or "").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    # What is free is not everywhere told (macOS); all memory is, and the default takes a modest share of it.
    name = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _group_memory(proc: Path, cgroup: Path) -> Iterator[int]:
    for group in _groups(proc, cgroup, ""):
        yield from _left(group, "memory.max", "memory.current", "inactive_file")
    for group in _groups(proc, cgroup, "memory"):
        yield from _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> Iterator[int]:
    """Limit less usage; file pages that nobody uses lately count as free, since the kernel drops them first."""
    limit, usage = _number(group / limit_file), _number(group / usage_file)
    if limit is None or usage is None or limit >= UNLIMITED:
        return
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, amount = line.partition(" ")
        if name == reclaimable and amount.isdigit():
            usage -= int(amount)
    yield max(0, limit - max(0, usage))


def _group_processors(proc: Path, cgroup: Path) -> Iterator[float]:
    for group in _groups(proc, cgroup, ""):
        quota, _, period = (_read(group / "cpu.max") or "").strip().partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield int(quota) / int(period)
    for group in _groups(proc, cgroup, "cpu"):
        allowed, every = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if allowed is not None and every is not None and allowed > 0 and every > 0:
            yield allowed / every


def _groups(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's control group and of all above it; `controller` is empty for version 2.

    Inside a container the path may be the host's; then only the root, which is the container's own group, exists.
    """
    for line in (_read(proc / "self" / "cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        root = cgroup / controllers if controller else cgroup
        folder = root / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def _number(file: Path) -> int | None:
    text = (_read(file) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return None
