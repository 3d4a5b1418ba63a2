"""What can go wrong with tokenizers and templates."""

from __future__ import annotations

__all__ = ["TemplateError", "TokenizerError"]


class TokenizerError(ValueError):
    """A tokenizer that cannot be built or is of a kind that is not supported, or a text that it cannot take; one line
    that names what.
    """


class TemplateError(ValueError):
    """A chat template that does not compile, refuses its input or passes its limits; one line for the caller."""
