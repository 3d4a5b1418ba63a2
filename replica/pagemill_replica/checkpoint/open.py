"""Opens whatever a path names."""

from __future__ import annotations

from pathlib import Path

from pagemill_replica.checkpoint import gguf, huggingface
from pagemill_replica.checkpoint.checkpoint import Checkpoint
from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.files import is_file, is_folder
from pagemill_replica.checkpoint.gguf_file import is_gguf


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a Hugging Face folder, a GGUF file, or a folder that holds exactly one GGUF file and no config.json.

    Reads headers only (milliseconds). Raises CheckpointError, one line naming file and reason.
    """
    if is_folder(path):
        files = sorted(file for file in path.glob("*.gguf") if is_file(file))
        if is_file(path / huggingface.CONFIG):
            return huggingface.open_folder(path)
        if not files:
            raise CheckpointError(
                path, f"holds neither {huggingface.CONFIG} nor a GGUF file, so it is no model's folder"
            )
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:8])
            raise CheckpointError(path, f"holds {len(files)} GGUF files ({names}); name one of them")
        return gguf.open_file(files[0])
    if not is_file(path):
        raise CheckpointError(path, "is a device or a pipe" if path.exists() else "does not exist")
    if path.suffix == ".gguf" or is_gguf(path):
        return gguf.open_file(path)
    raise CheckpointError(path, "is neither a GGUF file nor a folder with config.json and safetensors")
