"""What a machine and its control groups grant, from files laid out as the system lays them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagemill_replica.runner.system import available_memory, available_processors

KIB, GIB = 1 << 10, 1 << 30


class Machine:
    """A /proc and a /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.cgroup.mkdir()
        self.write(self.proc / "meminfo", f"MemTotal: {32 * GIB // KIB} kB\nMemAvailable: {16 * GIB // KIB} kB\n")

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, line: str) -> None:
        """Puts the process into the control group that a line of /proc/self/cgroup names."""
        file = self.proc / "self" / "cgroup"
        self.write(file, (file.read_text() if file.exists() else "") + line + "\n")

    def limit(self, folder: str, **files: str) -> None:
        for name, text in files.items():
            self.write(self.cgroup / folder / name.replace("__", "."), text + "\n")

    def memory(self) -> int:
        return available_memory(self.proc, self.cgroup)

    def processors(self, affinity: int = 8) -> int:
        return available_processors(self.proc, self.cgroup, affinity)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_control_groups_the_machine_counts(machine: Machine) -> None:
    assert machine.memory() == 16 * GIB
    assert machine.processors() == 8


def test_a_group_of_version_2_limits_memory(machine: Machine) -> None:
    machine.group("0::/pod")
    machine.limit("pod", memory__max=str(4 * GIB), memory__current=str(GIB))
    assert machine.memory() == 3 * GIB


def test_a_group_without_limit_limits_nothing(machine: Machine) -> None:
    machine.group("0::/pod")
    machine.limit("pod", memory__max="max", memory__current=str(GIB), cpu__max="max 100000")
    assert machine.memory() == 16 * GIB
    assert machine.processors() == 8


def test_the_tightest_of_all_enclosing_groups_counts(machine: Machine) -> None:
    machine.group("0::/slice/pod/container")
    machine.limit("slice/pod/container", memory__max="max", memory__current="0", cpu__max="400000 100000")
    machine.limit("slice/pod", memory__max=str(2 * GIB), memory__current="0", cpu__max="max 100000")
    machine.limit("slice", memory__max=str(8 * GIB), memory__current=str(7 * GIB), cpu__max="150000 100000")
    assert machine.memory() == GIB
    assert machine.processors() == 2


def test_inside_a_container_the_root_is_the_own_group(machine: Machine) -> None:
    # The path is the host's and does not exist here.
    machine.group("0::/kubepods/pod1/abc")
    machine.limit(".", memory__max=str(GIB), memory__current="0", cpu__max="50000 100000")
    assert machine.memory() == GIB
    assert machine.processors() == 1


def test_a_path_that_leads_out_of_the_mount_is_harmless(machine: Machine) -> None:
    machine.group("0::/../../other")
    machine.limit(".", memory__max=str(GIB), memory__current="0")
    assert machine.memory() == GIB


def test_file_pages_that_nobody_uses_count_as_free(machine: Machine) -> None:
    machine.group("0::/pod")
    machine.limit(
        "pod",
        memory__max=str(4 * GIB),
        memory__current=str(3 * GIB),
        memory__stat=f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file 5",
    )
    assert machine.memory() == 3 * GIB


def test_a_group_over_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.group("0::/pod")
    machine.limit("pod", memory__max=str(GIB), memory__current=str(2 * GIB))
    assert machine.memory() == 0


def test_groups_of_version_1_limit_each_by_its_controller(machine: Machine) -> None:
    machine.group("9:memory:/docker/abc")
    machine.group("4:cpu,cpuacct:/docker/abc")
    machine.group("1:name=systemd:/docker/abc")
    machine.limit(
        "memory/docker/abc",
        memory__limit_in_bytes=str(4 * GIB),
        memory__usage_in_bytes=str(2 * GIB),
        memory__stat=f"inactive_file 7\ntotal_inactive_file {GIB}",
    )
    machine.limit("cpu,cpuacct/docker/abc", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    assert machine.memory() == 3 * GIB
    assert machine.processors() == 3


def test_version_1_says_no_limit_with_numbers(machine: Machine) -> None:
    machine.group("9:memory:/")
    machine.group("4:cpu:/")
    machine.limit("memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    machine.limit("cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert machine.memory() == 16 * GIB
    assert machine.processors() == 8


@pytest.mark.parametrize("text", ["", "garbage", "max", "100000", "100000 0", "x 100000"])
def test_files_that_say_nothing_limit_nothing(machine: Machine, text: str) -> None:
    machine.group("0::/pod")
    machine.limit("pod", memory__max=text.split(" ")[0] or "", memory__current="", cpu__max=text)
    assert machine.memory() == 16 * GIB
    assert machine.processors() == 8


def test_affinity_limits_processors_and_one_is_the_least(machine: Machine) -> None:
    machine.group("0::/pod")
    machine.limit("pod", cpu__max="10000 100000")
    assert machine.processors(affinity=2) == 1
    machine.limit("pod", cpu__max="900000 100000")
    assert machine.processors(affinity=2) == 2


def test_systems_without_these_files_and_calls_still_have_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # macOS: no /proc, no affinity, no count of free pages.
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "sysconf_names", {k: v for k, v in os.sysconf_names.items() if k != "SC_AVPHYS_PAGES"})
    assert available_processors(tmp_path, tmp_path) == os.cpu_count()
    assert available_memory(tmp_path, tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_machine_has_memory_and_processors() -> None:
    assert available_memory() > 0
    assert available_processors() >= 1
