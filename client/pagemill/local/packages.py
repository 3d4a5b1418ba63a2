"""Which requirements of a package's metadata are not met. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?\s*([^;]*?)\s*(?:;\s*(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>|~=)\s*([0-9][^,\s]*)")


def unmet(requirements: Iterable[str], *, extras: Iterable[str], installed: Callable[[str], str | None]) -> list[str]:
    """What is missing or of a version that does not fit, one text for each package.

    Reads the `Requires-Dist` lines of a package; `installed` gives the version of another, or None. Only release
    numbers are compared, and markers other than `extra` are not evaluated.
    """
    wanted = set(extras)
    problems = []
    for name, bounds in _needed(requirements, wanted):
        version = installed(name)
        if version is None:
            problems.append(f"{name} is not installed")
        elif not all(_holds(version, operator, bound) for operator, bound in bounds):
            wish = ",".join(operator + bound for operator, bound in bounds)
            problems.append(f"{name} {version} is installed, {wish} is needed")
    return sorted(set(problems))


def of_extra(requirements: Iterable[str], extra: str) -> list[str]:
    """The lines that this extra alone adds, but for those that name Pagemill's own extras."""
    return [line for line in requirements if _extra_of(line) == extra and any(_needed([line], {extra}))]


def names(requirements: Iterable[str], extra: str) -> list[str]:
    """The packages that lines ask for, with this extra."""
    return [name for name, _ in _needed(requirements, {extra})]


def _extra_of(line: str) -> str | None:
    match = _EXTRA.search(line.partition(";")[2])
    return match[1] if match else None


def _needed(requirements: Iterable[str], extras: set[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for line in requirements:
        match = _REQUIREMENT.match(line)
        if match is None or match[1].lower() == "pagemill":
            continue
        extra = _extra_of(line)
        if extra is not None and extra not in extras:
            continue
        yield match[1], _BOUND.findall(match[3])


def _holds(version: str, operator: str, bound: str) -> bool:
    have, want = _release(version), _release(bound)
    length = max(len(have), len(want))
    left, right = have + (0,) * (length - len(have)), want + (0,) * (length - len(want))
    match operator:
        case ">=" | "~=":
            return left >= right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case "<":
            return left < right
        case "!=":
            return left != right
        case _:
            return left == right


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
