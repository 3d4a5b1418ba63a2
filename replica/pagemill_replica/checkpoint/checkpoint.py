"""An opened checkpoint: what every file format comes down to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pagemill_replica.checkpoint.config import GenerationDefaults, ModelConfig
from pagemill_replica.checkpoint.identity import model_id
from pagemill_replica.checkpoint.tensors import TensorEntry

Kind = Literal["huggingface", "gguf"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, its parts found and checked against each other, its weights unread."""

    path: Path
    """The folder or file it was opened from."""
    kind: Kind
    config: ModelConfig
    generation: GenerationDefaults
    metadata: Mapping[str, object]
    """All of a GGUF file's metadata; empty for a Hugging Face folder."""
    entries: Mapping[str, TensorEntry]
    """Canonical name to place, exactly the tensors that the config calls for."""
    files: list[Path]
    """The weight files."""
    identity_files: list[Path] = field(default_factory=list)
    """Small files beside the weights that are part of the model's identity: config, tokenizer, template."""

    @property
    def tensor_names(self) -> list[str]:
        """Canonical names of all tensors, in the order of the computation."""
        return list(self.entries)

    @property
    def weight_format(self) -> str:
        """How the weights are stored, such as `gguf/F32+Q4_1+Q8_0`."""
        return f"{self.kind}/" + "+".join(sorted({entry.encoding.name for entry in self.entries.values()}))

    def identity(self, cache_dir: Path | None = None, *, overrides: Sequence[bytes] = ()) -> str:
        """The model_id of block hashes, 64 hex digits: equal where config, tokenizer, template and weights are.

        Weight hashes are kept in `cache_dir` by path, size and modification time; a directory that cannot be written
        costs the hashing at each start and nothing else. `overrides` are contents that replace what the files hold,
        such as a chat template given by a setting. Raises CheckpointError where a file cannot be read.
        """
        return model_id(self.weight_format, self.files, self.identity_files, cache_dir, overrides)
