"""What a path may name, and what is said of one that names no model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from support.checkpoints import raw_gguf, write_folder


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_a_folder_a_file_and_a_folder_with_one_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    assert open_checkpoint(folder).kind == "huggingface"
    file = raw_gguf().write(tmp_path / "m.gguf")
    assert open_checkpoint(file).kind == "gguf"
    assert open_checkpoint(tmp_path).path == file
    # With a config.json beside it the folder is a Hugging Face folder.
    raw_gguf().write(folder / "m.gguf")
    assert open_checkpoint(folder).kind == "huggingface"


def test_a_gguf_file_of_any_name_is_known_by_its_content(tmp_path: Path) -> None:
    assert open_checkpoint(raw_gguf().write(tmp_path / "blob-sha256")).kind == "gguf"


def test_several_gguf_files_are_listed(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        raw_gguf().write(tmp_path / name)
    assert "holds 2 GGUF files (a.gguf, b.gguf); name one of them" in refused(tmp_path)


def test_a_folder_called_like_a_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").mkdir()
    file = raw_gguf().write(tmp_path / "b.gguf")
    assert open_checkpoint(tmp_path).path == file


def test_a_path_of_nothing_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "gone") == f"{tmp_path / 'gone'}: does not exist"
    assert "holds neither config.json nor a GGUF file" in refused(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    assert "is neither a GGUF file nor a folder with" in refused(tmp_path / "note.txt")


@pytest.mark.parametrize("path", ["n" * 5000, "nul\0l", "\udcff.gguf", "line\nbreak"])
def test_an_impossible_path_is_one_printable_line(path: str, tmp_path: Path) -> None:
    line = refused(tmp_path / path)
    assert line.isprintable()
    assert line.encode()


@pytest.mark.parametrize("name", ["pipe", "pipe.gguf"])
def test_a_pipe_does_not_hang(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    assert "is a device or a pipe" in refused(tmp_path / name)
    assert "is a device or a pipe" in refused(Path("/dev/zero"))
