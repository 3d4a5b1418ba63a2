"""Tokenizers from Hugging Face folders, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from pagemill_common.tokenisation import ModelTokenizer, TokenizerError
from pagemill_replica.tokenizer import bundle_from_folder

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"


def byte_level_backend(post: Any = None) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    vocab.update({"th": 256, "the": 257, "Ġthe": 258})
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e"), ("Ġ", "the")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    if post is not None:
        backend.post_processor = post
    return backend


def template_processing(single: str) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=[("<s>", 259), ("</s>", 260)])


def write(folder: Path, backend: Tokenizer, config: dict[str, Any] | None = None, **files: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast", **(config or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


@pytest.mark.parametrize(
    ("post", "config", "expected"),
    [
        (None, {}, (False, False)),
        (template_processing("<s> $A"), {}, (True, False)),
        (template_processing("$A </s>"), {}, (False, True)),
        (template_processing("<s> $A </s>"), {}, (True, True)),
        # Beside a tokenizer.json the config's flags say nothing, as in transformers.
        (None, {"add_bos_token": True}, (False, False)),
        (template_processing("<s> $A </s>"), {"add_bos_token": False}, (True, True)),
        (template_processing("<s> $A"), {"add_eos_token": True}, (True, False)),
    ],
)
def test_what_is_added_is_what_transformers_adds(
    post: Any, config: dict[str, Any], expected: tuple[bool, bool], tmp_path: Path
) -> None:
    folder = write(tmp_path, byte_level_backend(post), config)
    bundle = bundle_from_folder(folder)
    assert (bundle.add_bos, bundle.add_eos) == expected
    oracle = AutoTokenizer.from_pretrained(folder)
    tokenizer = ModelTokenizer.from_bundle(bundle)
    for text in ("the other", "<tool> the<|im_end|>x", "naïve 🙂"):
        assert tokenizer.encode(text) == oracle.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == oracle.decode(oracle.encode(text), skip_special_tokens=True)


def test_a_spelled_out_beginning_is_not_doubled(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend(template_processing("<s> $A")))
    tokenizer = ModelTokenizer.from_bundle(bundle_from_folder(folder))
    assert tokenizer.encode("<s>the") == [259, 257]


def test_other_added_tokens_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend(template_processing("<s> </s> $A")))
    with pytest.raises(TokenizerError, match="not supported"):
        bundle_from_folder(folder)


def test_a_beginning_that_the_config_does_not_name(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend(template_processing("<s> $A")), {"bos_token": None})
    assert ModelTokenizer.from_bundle(bundle_from_folder(folder)).encode("the") == [259, 257]


@pytest.mark.parametrize("where", ["jinja", "config", "list"])
def test_the_template_is_found_where_transformers_finds_it(where: str, tmp_path: Path) -> None:
    backend = byte_level_backend()
    if where == "jinja":
        folder = write(tmp_path, backend, {"chat_template": "wrong"}, chat_template__jinja=TEMPLATE)
    elif where == "config":
        folder = write(tmp_path, backend, {"chat_template": TEMPLATE})
    else:
        named = [{"name": "tool_use", "template": "wrong"}, {"name": "default", "template": TEMPLATE}]
        folder = write(tmp_path, backend, {"chat_template": named})
    tokenizer = ModelTokenizer.from_bundle(bundle_from_folder(folder))
    chat = [{"role": "user", "content": "the <b> & 'q'"}]
    oracle = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.render_chat(chat) == oracle.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode_chat(chat) == oracle.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


def test_tokens_that_only_the_config_calls_special(tmp_path: Path) -> None:
    backend = byte_level_backend()
    decoder = {"263": {"content": "<think>", "special": True}, "262": {"content": "<tool>", "special": False}}
    config = {
        "added_tokens_decoder": decoder,
        "additional_special_tokens": ["th"],
        "pad_token": {"__type": "AddedToken", "content": "<tool>"},
    }
    folder = write(tmp_path, backend, config)
    tokenizer = ModelTokenizer.from_bundle(bundle_from_folder(folder))
    # An added token is found before merges are looked at.
    assert tokenizer.encode("<think>the") == [263, 256, 68]
    assert AutoTokenizer.from_pretrained(folder).encode("<think>the") == [263, 256, 68]
    assert all(tokenizer.is_special(i) for i in (263, 262, 256))


def test_ends_of_text(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend(), {"eos_token": {"__type": "AddedToken", "content": "</s>"}})
    assert list(bundle_from_folder(folder, [7]).end_of_text_ids) == [7, 260, 261]


def test_special_tokens_map_fills_in(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend(), special_tokens_map__json={"eos_token": "</s>", "bos_token": "<s>"})
    (folder / "tokenizer_config.json").unlink()
    bundle = bundle_from_folder(folder)
    assert (bundle.bos_token, bundle.eos_token_id) == ("<s>", 260)


def test_llama_2_as_transformers_writes_it(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}}
    for piece in ("▁", "t", "h", "e", "th", "the", "▁the"):
        vocab[piece] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True).save_pretrained(tmp_path)
    oracle = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = ModelTokenizer.from_bundle(bundle_from_folder(tmp_path))
    for text in ("the the", " the", "née 🙂", "</s>the", ""):
        ids = oracle.encode(text)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_a_metaspace_decoder_as_older_files_have_it(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.normalizer = normalizers.NFC()
    folder = write(tmp_path, backend, {"bos_token": None, "eos_token": None})
    tokenizer = ModelTokenizer.from_bundle(bundle_from_folder(folder))
    for ids in ([3, 3, 2], [1, 3], [2, 1, 1], []):
        assert tokenizer.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text("[]"), "tokenizer.json holds no JSON object"),
        (lambda f: (f / "tokenizer.json").write_text('{"model": 1}'), "tokenizer.json cannot be loaded"),
        (lambda f: (f / "tokenizer_config.json").write_bytes(b"\xff"), "tokenizer_config.json cannot be read"),
        (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"), "chat_template.jinja cannot be read"),
    ],
)
def test_the_file_at_fault_is_named(damage: Any, named: str, tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend())
    damage(folder)
    with pytest.raises(TokenizerError, match=named):
        bundle_from_folder(folder)


def test_a_sentencepiece_file_alone_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match="save the tokenizer with transformers"):
        bundle_from_folder(tmp_path)


def test_a_folder_of_transformers_own(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(
        tokenizer_object=byte_level_backend(), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(tmp_path)
    tokenizer = ModelTokenizer.from_bundle(bundle_from_folder(tmp_path))
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<s>[user] x</s>"
