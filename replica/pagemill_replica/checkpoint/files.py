"""What a path names, told apart before it is opened: a pipe would hang a reader, an endless name would crash it."""

from __future__ import annotations

from pathlib import Path

from pagemill_replica.checkpoint.errors import CheckpointError

LFS_START = b"version https://git-lfs"


def is_file(path: Path) -> bool:
    """Whether a path names a regular file, followed through links. CheckpointError where the system cannot say."""
    try:
        return path.is_file()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error


def is_folder(path: Path) -> bool:
    """Whether a path names a folder, followed through links. CheckpointError where the system cannot say."""
    try:
        return path.is_dir()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error


def refuse_pointer(file: Path, start: bytes) -> None:
    """CheckpointError where a file's first bytes are those of the stub that Git keeps in place of a large file."""
    if start.startswith(LFS_START):
        raise CheckpointError(file, "is a Git LFS pointer, not the file itself; fetch that with `git lfs pull`")
