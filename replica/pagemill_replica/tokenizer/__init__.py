"""The tokenizer of a checkpoint, as routers and the front need it."""

from __future__ import annotations

from pagemill_common.tokenisation import TokenizerError
from pagemill_replica.tokenizer.build import TokenizerSource, build_bundle
from pagemill_replica.tokenizer.end_of_text import END_OF_TEXT_NAMES
from pagemill_replica.tokenizer.gguf import bundle_from_metadata
from pagemill_replica.tokenizer.huggingface import bundle_from_folder

__all__ = [
    "END_OF_TEXT_NAMES",
    "TokenizerError",
    "TokenizerSource",
    "build_bundle",
    "bundle_from_folder",
    "bundle_from_metadata",
]
