"""Chooses how to read a checkpoint's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation import TokenizerError
from pagemill_replica.tokenizer.gguf import bundle_from_metadata
from pagemill_replica.tokenizer.huggingface import bundle_from_folder

__all__ = ["TokenizerSource", "build_bundle"]


class _Generation(Protocol):
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


class TokenizerSource(Protocol):
    """What a tokenizer is built from; `checkpoint.Checkpoint` is one."""

    @property
    def path(self) -> Path:
        """File or folder."""
        ...

    @property
    def kind(self) -> str:
        """`gguf` or `huggingface`."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """GGUF metadata."""
        ...

    @property
    def generation(self) -> _Generation:
        """Defaults of the model's makers; `eos_token_ids` count as end of text."""
        ...


def build_bundle(source: TokenizerSource) -> model_pb2.TokenizerBundle:
    """The bundle of a checkpoint. Raises TokenizerError, one line that names the file and what is wrong."""
    eos_ids = source.generation.eos_token_ids
    try:
        if source.kind == "gguf":
            return bundle_from_metadata(source.metadata, eos_ids)
        return bundle_from_folder(source.path, eos_ids)
    except TokenizerError as error:
        raise TokenizerError(" ".join(f"{source.path}: {error}".split())) from None
