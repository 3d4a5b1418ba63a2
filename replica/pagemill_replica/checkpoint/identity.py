"""The model's identity: a hash over everything that decides what a KV block holds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from pagemill_replica.checkpoint.errors import CheckpointError

DOMAIN = b"pagemill-model-1"


def model_id(
    weight_format: str,
    weight_files: Sequence[Path],
    identity_files: Sequence[Path],
    cache_dir: Path | None,
    overrides: Sequence[bytes] = (),
) -> str:
    """SHA-256, in hex, over length-prefixed parts: format, small files by name and hash, weight files by name and hash.

    Folders do not count, so that replicas that keep the model in different places agree.
    """
    parts: list[bytes] = [DOMAIN, weight_format.encode()]
    for file in sorted(identity_files, key=lambda f: f.name):
        parts += [file.name.encode(), _hash_file(file)]
    for file in sorted(weight_files, key=lambda f: f.name):
        # A GGUF file may be called anything; shards differ by name but their hashes already say which is which.
        parts += [b"weights", hash_weight_file(file, cache_dir)]
    parts += [hashlib.sha256(content).digest() for content in overrides]
    return hashlib.sha256(_length_prefixed(parts)).hexdigest()


def hash_weight_file(file: Path, cache_dir: Path | None) -> bytes:
    """SHA-256 of a file, remembered in `cache_dir` under its path, size and modification time (ns)."""
    before = _stamp(file)
    remembered = None if cache_dir is None else _recall(cache_dir, before)
    if remembered is not None:
        return remembered
    digest = _hash_file(file)
    if _stamp(file) != before:
        raise CheckpointError(file, "changed while it was read")
    if cache_dir is not None:
        _remember(cache_dir, before, digest)
    return digest


def _hash_file(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error


def _stamp(file: Path) -> dict[str, str | int]:
    try:
        about = file.stat()
        return {"path": str(file.resolve()), "size": about.st_size, "mtime_ns": about.st_mtime_ns}
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error


def _cache_file(cache_dir: Path, stamp: dict[str, str | int]) -> Path:
    return cache_dir / f"weights-{hashlib.sha256(os.fsencode(str(stamp['path']))).hexdigest()[:32]}.json"


def _recall(cache_dir: Path, stamp: dict[str, str | int]) -> bytes | None:
    """The hash remembered for exactly this stamp; None where there is none or its record is damaged."""
    try:
        record = json.loads(_cache_file(cache_dir, stamp).read_text(encoding="utf-8"))
        digest = bytes.fromhex(record.pop("sha256"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return digest if record == stamp and len(digest) == hashlib.sha256().digest_size else None


def _remember(cache_dir: Path, stamp: dict[str, str | int], digest: bytes) -> None:
    """Writes a record whole or not at all: readers and other writers never see half of one."""
    with contextlib.suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache_dir, prefix=".weights-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump({**stamp, "sha256": digest.hex()}, stream)
            os.replace(temporary, _cache_file(cache_dir, stamp))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _length_prefixed(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
