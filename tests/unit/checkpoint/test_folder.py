"""A Hugging Face folder: its shards, their index, and what config and weights say of each other."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.tensors import read_rows
from support.checkpoints import llama, random_weights, write_folder, write_json, write_shards

INDEX = "model.safetensors.index.json"
FIRST, SECOND = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
UP = "model.layers.1.mlp.up_proj.weight"


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_shards_and_one_file_hold_the_same(tmp_path: Path) -> None:
    weights = random_weights(llama())
    write_folder(tmp_path / "one", weights=weights)
    write_shards(tmp_path / "two", weights)
    one, two = open_checkpoint(tmp_path / "one"), open_checkpoint(tmp_path / "two")
    assert one.tensor_names == two.tensor_names == list(weights)
    assert [file.name for file in two.files] == [FIRST, SECOND]
    for name, values in weights.items():
        assert read_rows(one.entries[name]).tobytes() == read_rows(two.entries[name]).tobytes() == values.tobytes()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, random_weights(llama()))
    (tmp_path / SECOND).unlink()
    assert refused(tmp_path) == f"{tmp_path / SECOND}: is missing; {INDEX} names it: copy or download it again"


def test_a_shard_without_a_tensor_that_the_index_places_in_it_is_named(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path, random_weights(llama()))
    write_json(tmp_path / INDEX, {"weight_map": {**weight_map, UP: FIRST}})
    assert f"{FIRST}: lacks tensor {UP} that {INDEX} places in it" in refused(tmp_path)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "./x.safetensors"])
def test_an_index_that_leaves_its_folder_is_refused(shard: str, tmp_path: Path) -> None:
    weights = random_weights(llama())
    folder = tmp_path / "model"
    weight_map = write_shards(folder, weights)
    # What the index points at exists and is sound, so that only the rule stands in the way.
    for place in (tmp_path, folder / "sub"):
        write_folder(place, weights=weights)
    write_json(folder / INDEX, {"weight_map": {**weight_map, UP: shard}})
    assert f"{INDEX}: names a shard outside its folder: {shard!r}" in refused(folder)


@pytest.mark.parametrize("shard", ["", ".", "..", "nul\0l", "\ud800", "n" * 5000])
def test_an_index_with_an_impossible_name_is_an_error_not_a_crash(shard: str, tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path, random_weights(llama()))
    write_json(tmp_path / INDEX, {"weight_map": {**weight_map, UP: shard}})
    line = refused(tmp_path)
    assert line.isprintable()
    assert line.encode()


@pytest.mark.parametrize("index", [{}, {"weight_map": {"a": 3}}, {"weight_map": None}])
def test_an_index_without_a_map_is_named(index: object, tmp_path: Path) -> None:
    write_shards(tmp_path, random_weights(llama()))
    write_json(tmp_path / INDEX, index)
    assert f"{INDEX}: lacks a weight_map" in refused(tmp_path)


def test_an_index_of_another_form_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, random_weights(llama()))
    write_json(tmp_path / INDEX, {"weight_map": [1]})
    assert f"{INDEX}: weight_map is '[1]'; it must be an object" in refused(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    weights = random_weights(llama())
    write_shards(tmp_path, weights)
    first = {name: weights[name] for name in list(weights)[: len(weights) // 2]}
    (tmp_path / FIRST).write_bytes(save({**first, UP: weights[UP] + 1}))
    assert f"holds tensor {UP} that another shard holds too" in refused(tmp_path)


def test_a_tensor_that_the_index_hides_is_still_seen(tmp_path: Path) -> None:
    """A bias left out of the index would be left out of the computation."""
    weights = random_weights(llama())
    write_shards(tmp_path, weights)
    second = {name: weights[name] for name in list(weights)[len(weights) // 2 :]}
    bias = "model.layers.1.mlp.up_proj.bias"
    (tmp_path / SECOND).write_bytes(save({**second, bias: np.ones(64, np.float32)}))
    assert f"holds tensor {bias} that a LlamaForCausalLM of this config has no use for" in refused(tmp_path)


def test_two_sets_of_weights_are_refused(tmp_path: Path) -> None:
    weights = random_weights(llama())
    write_shards(tmp_path, weights)
    write_folder(tmp_path, weights=weights)
    assert f"holds both model.safetensors and {INDEX}; remove" in refused(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = random_weights(llama())
    del weights[UP]
    write_folder(tmp_path, weights=weights)
    assert refused(tmp_path) == f"{tmp_path / 'model.safetensors'}: lacks tensor {UP} that its config calls for"


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    write_folder(tmp_path, weights={"model.norm.weight": np.ones(32, np.float32)})
    assert "lacks 20 tensors (model.embed_tokens.weight, " in refused(tmp_path)
    assert ", ...) that its config calls for" in refused(tmp_path)


def test_a_tensor_of_no_use_is_refused(tmp_path: Path) -> None:
    weights = random_weights(llama(attention_bias=True))
    write_folder(tmp_path, llama(), weights)
    line = refused(tmp_path)
    assert "holds 8 tensors (model.layers.0.self_attn." in line
    assert line.endswith("that a LlamaForCausalLM of this config has no use for")


def test_rotation_tables_are_ignored(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    write_folder(tmp_path, weights={**random_weights(llama()), name: np.ones(4, np.float32)})
    assert name not in open_checkpoint(tmp_path).entries


@pytest.mark.parametrize("shape", [(64, 31), (32, 64), (64 * 32,), (1, 64, 32)])
def test_a_wrong_shape_is_named_with_both_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    write_folder(tmp_path, weights={**random_weights(llama()), UP: np.ones(shape, np.float32)})
    assert f"tensor {UP} has shape {list(shape)}; config says [64, 32]" in refused(tmp_path)


def test_a_wrong_type_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, weights={**random_weights(llama()), UP: np.ones((64, 32), np.int8)})
    assert f"tensor {UP} has type I8; supported are F32, F16, BF16" in refused(tmp_path)


def test_a_tied_head_needs_no_tensor_and_may_have_one(tmp_path: Path) -> None:
    untied = random_weights(llama())
    tied = {name: values for name, values in untied.items() if name != "lm_head.weight"}
    config = llama(tie_word_embeddings=True)
    assert open_checkpoint(write_folder(tmp_path / "a", config, tied)).config.tied_embeddings
    assert "lm_head.weight" not in open_checkpoint(write_folder(tmp_path / "b", config, untied)).entries
    assert "lm_head.weight" in open_checkpoint(write_folder(tmp_path / "c", llama(), untied)).entries
    assert "lacks tensor lm_head.weight" in refused(write_folder(tmp_path / "d", llama(), tied))


def test_weights_of_another_format_are_named(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", llama())
    assert "holds neither model.safetensors nor model.safetensors.index.json" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert "pytorch_model.bin must be converted to safetensors first" in refused(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json", "tokenizer.json"])
def test_a_pipe_in_the_folder_does_not_hang(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    if name in ("config.json", "model.safetensors"):
        assert "holds neither" in refused(tmp_path)
    else:
        assert open_checkpoint(tmp_path).identity_files == [tmp_path / "config.json"]
