"""Which parts of Pagemill are installed here, and whether they are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata

from pagemill.local.install import install_advice
from pagemill.local.packages import names, of_extra, unmet
from pagemill.local.verdicts import Check, Verdict

PARTS = ("router", "replica", "local")
"""The extras of the package, each after those that it builds on."""

SHOWN = 4
"""Problems told one by one."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The parts that are here, and what is wrong with them."""

    parts: tuple[str, ...]
    problems: tuple[str, ...]


def look(requirements: Iterable[str], version_of: Callable[[str], str | None]) -> Installed:
    """Judges the packages that are installed by the `Requires-Dist` lines of Pagemill.

    Nothing records which extras were asked for. A part of which most packages are missing was not: other programs may
    have brought the rest. One of which most are there was, and what it lacks is a problem.
    """
    lines = list(requirements)
    problems = unmet(lines, extras=(), installed=version_of)
    parts = []
    for part in PARTS:
        own = of_extra(lines, part)
        absent = [name for name in names(own, part) if version_of(name) is None]
        if 2 * len(absent) <= len(own):
            parts.append(part)
            problems += unmet(own, extras=(part,), installed=version_of)
    return Installed(tuple(parts), tuple(problems))


def packages_check(here: Installed, version: str | None) -> Check:
    """The packages of the parts that are installed are all there, in versions that fit."""
    if version is None:
        return Check("packages", Verdict.FAIL, "pagemill is not installed", install_advice())
    if here.problems:
        rest = len(here.problems) - SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        found = "; ".join(here.problems[:SHOWN]) + more
        return Check("packages", Verdict.FAIL, found, install_advice(here.parts[-1] if here.parts else "local"))
    if not here.parts:
        found = f"pagemill {version}, the client only: it calls a service that runs elsewhere"
        return Check("packages", Verdict.OK, found, f"to run one here, {install_advice()}")
    return Check("packages", Verdict.OK, f"pagemill {version} with {', '.join(here.parts)}")


def installed_version(package: str) -> str | None:
    """The version of a package that is installed here, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed_here() -> Installed:
    """The parts installed for the Python that runs this."""
    try:
        requirements = metadata.requires("pagemill") or []
    except metadata.PackageNotFoundError:
        requirements = []
    return look(requirements, installed_version)
