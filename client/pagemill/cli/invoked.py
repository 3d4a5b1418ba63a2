"""How the `pagemill` command was started, for advice that can be typed as it stands."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path


def own_command(started: str, folder: Path) -> str:
    """What to type in `folder` to start this command again; `started` is how it was started, its argv[0]."""
    if Path(started).name != "pagemill":
        return "pagemill"
    path = Path(os.path.abspath(started))
    on_path = shutil.which("pagemill")
    if on_path is not None and Path(os.path.abspath(on_path)) == path:
        return "pagemill"
    relative = os.path.relpath(path, folder)
    return shlex.quote(min(relative, str(path), key=len))
