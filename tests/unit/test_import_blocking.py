"""What computes imports with all else blocked: each module of engine, checkpoint, model, runner and kernels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

NUMERIC = ("numpy", "torch", "triton", "numba", "llvmlite", "safetensors")
"""llvmlite is what numba's intrinsics are written in."""
MAY_IMPORT = {
    "pagemill_replica.engine": (),
    "pagemill_replica.checkpoint": ("numpy",),
    "pagemill_replica.model": (*NUMERIC, "pagemill_kernels"),
    "pagemill_replica.runner": (*NUMERIC, "pagemill_kernels"),
    "pagemill_kernels": NUMERIC,
}
"""Beside the standard library and the package's own distribution folder."""

SCRIPT = """
import builtins, importlib, json, sys

order = json.loads(sys.argv[1])
standard = set(sys.stdlib_module_names) | {"__main__"}
direct = standard | set(order["direct"])
installed = direct | set(order["dependencies"])

class Guard:
    '''A finder for which only some packages are installed.'''

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return self.finder.find_spec(name, path, target) if name.partition(".")[0] in installed else None

def import_checked(name, globals=None, locals=None, fromlist=(), level=0):
    # A dependency's dependency is there for it, not for us, and would not come past the finders a second time.
    importer = (globals or {}).get("__name__", "")
    if importer.startswith("pagemill_") and level == 0 and name.partition(".")[0] not in direct:
        raise ModuleNotFoundError(f"{importer} may not import {name}")
    return importing(name, globals, locals, fromlist, level)

importing, builtins.__import__ = builtins.__import__, import_checked
sys.meta_path[:] = [Guard(finder) for finder in sys.meta_path]
for name in [m for m in sys.modules if m.partition(".")[0] not in installed]:
    del sys.modules[name]
for name in order["modules"]:
    importlib.import_module(name)
refused = []
for name in order["refused"]:
    try:
        exec(f"import {name}", {"__name__": "pagemill_replica.engine.core"})
    except ModuleNotFoundError:
        refused.append(name)
print(json.dumps(refused))
"""


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def modules_of(package: str) -> list[str]:
    """The package and all modules below it."""
    folder = folder_of(package)
    names = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        names.append(".".join((package, *(part for part in parts if part != "__init__"))))
    return names


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def dependencies(distributions: Iterable[str]) -> set[str]:
    """Names of the modules of some distributions, those they require, and so on; extras left out."""
    pending, found = list(distributions), set()
    while pending:
        name = normal(pending.pop())
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        pending += [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requirements if "extra ==" not in text]
    owners = importlib.metadata.packages_distributions()
    return {module for module, names in owners.items() if found & {normal(name) for name in names}}


def test_the_lists_name_modules() -> None:
    """Else the test below could pass by importing nothing."""
    assert "pagemill_replica.engine.scheduler" in modules_of("pagemill_replica.engine")
    assert {"pagemill_kernels", "pagemill_kernels.ops", "pagemill_kernels.cpu.backend"} <= set(
        modules_of("pagemill_kernels")
    )
    assert "llvmlite" in dependencies(["numba"])
    assert dependencies(["no-such-distribution"]) == set()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_that_computes_imports_with_all_else_blocked(package: str) -> None:
    allowed = MAY_IMPORT[package]
    others = ["msgspec", "grpc", "tokenizers", "pydantic", "pagemill", "pagemill_common", "jinja2"]
    third_party = dependencies(name for name in allowed if not name.startswith("pagemill_"))
    order = {
        "modules": modules_of(package),
        "direct": [package.partition(".")[0], *allowed],
        "dependencies": sorted(third_party),
        "refused": others,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(order)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    # What the script tries to import in the name of our code shows that the block blocks.
    assert json.loads(done.stdout) == others
