"""A tokenizer from a Hugging Face folder.

Read are tokenizer.json (the tokenizer), tokenizer_config.json and special_tokens_map.json (which tokens are special)
and chat_template.jinja or the config's `chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation import TokenizerError
from pagemill_replica.tokenizer.end_of_text import end_of_text_ids

__all__ = ["bundle_from_folder"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def bundle_from_folder(folder: Path, eos_token_ids: Sequence[int] = ()) -> model_pb2.TokenizerBundle:
    """The bundle of a folder's tokenizer; `eos_token_ids` are those of generation_config and config.

    Raises TokenizerError, which names the file at fault.
    """
    description = _read_json(folder, "tokenizer.json")
    if description is None:
        hint = "; save the tokenizer with transformers to get one" if (folder / "tokenizer.model").exists() else ""
        raise TokenizerError(f"tokenizer.json is missing{hint}")
    special_map = _read_json(folder, "special_tokens_map.json") or {}
    config = {**special_map, **(_read_json(folder, "tokenizer_config.json") or {})}
    _mark_special(description, config)
    backend = _load(description)
    bos, eos = (_text(config.get(name)) for name in ("bos_token", "eos_token"))
    bos_id, eos_id = (None if text is None else backend.token_to_id(text) for text in (bos, eos))
    before, after = _added(backend)
    added = backend.get_added_tokens_decoder()
    special = {token.content: index for index, token in added.items() if token.special}
    size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    return model_pb2.TokenizerBundle(
        tokenizer_json=json.dumps(description, ensure_ascii=False, separators=(",", ":")).encode(),
        chat_template=_chat_template(folder, config),
        bos_token=bos or "",
        eos_token=eos or "",
        end_of_text_ids=end_of_text_ids([*eos_token_ids, eos_id], special, size),
        add_bos=before is not None,
        bos_token_id=bos_id if before is None else before,
        add_eos=after is not None,
        eos_token_id=eos_id if after is None else after,
    )


def _read_json(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / name
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{name} holds no JSON object")
    return value


def _text(value: object) -> str | None:
    """A token in a config: a string, or an object with its `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _named_special(config: Mapping[str, Any]) -> Iterator[str]:
    values: list[object] = [config.get(name) for name in _NAMED]
    for name in _LISTS:
        listed = config.get(name) or []
        values.extend(listed.values() if isinstance(listed, Mapping) else listed)
    yield from (text for text in map(_text, values) if text is not None)


def _mark_special(description: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Makes the tokens that the config names special in tokenizer.json, as transformers does when it loads both."""
    entries: list[dict[str, Any]] = description.setdefault("added_tokens", [])
    known = {entry["content"]: entry for entry in entries}
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    for key, value in (config.get("added_tokens_decoder") or {}).items():
        if value["content"] not in known:
            known[value["content"]] = entry = _entry(int(key), value["content"], value)
            entries.append(entry)
    for text in _named_special(config):
        if text in known:
            known[text]["special"] = True
        elif isinstance(vocabulary, Mapping) and text in vocabulary:
            known[text] = entry = _entry(int(vocabulary[text]), text, {"special": True})
            entries.append(entry)
    entries.sort(key=lambda entry: int(entry["id"]))


def _entry(token_id: int, content: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token_id, "content": content, **{name: bool(flags.get(name, False)) for name in names}}


def _load(description: Mapping[str, Any]) -> Tokenizer:
    try:
        backend = Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # `tokenizers` raises a bare Exception
        raise TokenizerError(f"tokenizer.json cannot be loaded: {error}") from None
    backend.no_padding()
    backend.no_truncation()
    return backend


def _added(backend: Tokenizer) -> tuple[int | None, int | None]:
    """The ids that tokenizer.json's post-processor puts before and after a text.

    `add_bos_token` of tokenizer_config.json is not read: transformers, too, ignores it beside a tokenizer.json.
    """
    plain: list[int] = backend.encode("a", add_special_tokens=False).ids
    whole: list[int] = backend.encode("a", add_special_tokens=True).ids
    for before in (0, 1):
        if whole[before : before + len(plain)] == plain and len(whole) - len(plain) - before in (0, 1):
            after = whole[before + len(plain) :]
            return (whole[0] if before else None), (after[0] if after else None)
    raise TokenizerError("tokenizer.json adds more than one token to an end of a text, which is not supported")


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise TokenizerError(f"chat_template.jinja cannot be read: {error}") from None
    value = config.get("chat_template")
    if isinstance(value, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, Mapping)}
        value = named.get("default")
    return value if isinstance(value, str) else ""
