"""The engine needs nothing but the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pagemill_replica.engine

SCRIPT = """
import importlib, pathlib, sys

class Refuse:
    allowed = set(sys.stdlib_module_names) | {"pagemill_replica"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder.parent.parent))
names = [f"pagemill_replica.engine.{f.stem}" for f in sorted(folder.glob("*.py")) if f.stem != "__init__"]
for name in names:
    importlib.import_module(name)
strangers = {m.partition(".")[0] for m in sys.modules} - Refuse.allowed - {"__main__", "__mp_main__"}
print(len(names), sorted(s for s in strangers if not s.startswith(("_", "sitecustomize"))))
try:
    import msgspec
except ImportError as error:
    print(error)
"""


def test_the_engine_imports_with_all_else_blocked() -> None:
    folder = Path(pagemill_replica.engine.__file__).parent
    # -S leaves out site-packages and what editable installs put there.
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    count, blocked = done.stdout.splitlines()
    assert count == f"{len(list(folder.glob('*.py'))) - 1} []"
    assert blocked == "msgspec is blocked"
