"""The tokenizer of one model: text and chats to ids, ids to text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation.coverage import Coverage
from pagemill_common.tokenisation.errors import TemplateError, TokenizerError
from pagemill_common.tokenisation.template import ChatTemplate, TemplateLimits
from pagemill_common.tokenisation.text_stream import decode
from pagemill_common.tokenisation.token_bytes import TokenBytes

__all__ = ["ModelTokenizer"]


class ModelTokenizer:
    """Encodes, renders and decodes for one model. Immutable after construction; threads may share it.

    Encoding a long text takes seconds, without the GIL: it belongs in a thread, where it stops nobody.
    """

    def __init__(self, bundle: model_pb2.TokenizerBundle, *, template_limits: TemplateLimits | None = None) -> None:
        """Raises TokenizerError where the bundle's tokenizer cannot be loaded or has a decoder that is not
        supported.
        """
        self.bundle = bundle
        self._serialised = bundle.SerializeToString(deterministic=True)
        self.digest: bytes = hashlib.sha256(self._serialised).digest()
        """SHA-256 of the serialised bundle, as GetTokenizer sends it."""
        self._backend = _load(bundle.tokenizer_json)
        self._pieces = _pieces(self._backend)
        added = self._backend.get_added_tokens_decoder()
        special = frozenset(i for i, token in added.items() if token.special)
        description = json.loads(bundle.tokenizer_json)
        self.byte_table = TokenBytes.of(description.get("decoder"), self._pieces, special)
        self._coverage = Coverage.of(description, self._backend, self.byte_table)
        self.end_of_text_ids: tuple[int, ...] = tuple(bundle.end_of_text_ids)
        self._template_limits = template_limits or TemplateLimits()

    @classmethod
    def from_bundle(cls, bundle: model_pb2.TokenizerBundle) -> ModelTokenizer:
        """The tokenizer that a bundle describes. Raises TokenizerError."""
        return cls(bundle)

    @property
    def serialised_bundle(self) -> bytes:
        """The bundle's bytes, whose SHA-256 is `digest`."""
        return self._serialised

    @property
    def vocab_size(self) -> int:
        """Ids of this tokenizer are below this. A model's embedding may have more rows."""
        return len(self._pieces)

    @property
    def has_chat_template(self) -> bool:
        """Chats can be rendered."""
        return bool(self.bundle.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        `add_special_tokens` adds beginning and end of text where the model's tokenizer does so, but never a second
        one beside one that the text already has. `parse_special` reads special tokens that are spelled out in the
        text as such; otherwise they are ordinary text (tokens a tokenizer marks as user-defined are read either way).
        Raises TokenizerError for a text with half a surrogate pair, which no UTF-8 stands for.
        """
        backend = self._backend if parse_special else self._literal_backend
        if not _is_unicode(text):
            raise TokenizerError("the text holds half a surrogate pair, which is no character")
        # `encode` keeps the GIL to its end; the batches do not, and this one leaves out offsets, which nobody needs.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not add_special_tokens:
            return ids
        bundle = self.bundle
        if bundle.add_bos and bundle.HasField("bos_token_id") and ids[:1] != [bundle.bos_token_id]:
            ids = [bundle.bos_token_id, *ids]
        if bundle.add_eos and bundle.HasField("eos_token_id") and ids[-1:] != [bundle.eos_token_id]:
            ids = [*ids, bundle.eos_token_id]
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, found without encoding it; 0 where nothing is sure."""
        return 0 if self._coverage is None else self._coverage.fewest_tokens(text)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as the model's template writes it. Raises TemplateError."""
        template = self._template
        if template is None:
            raise TemplateError("the model has no chat template")
        return template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables or {})

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat. The template alone decides about beginning of text.

        Raises TemplateError, and TokenizerError as `encode` does.
        """
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; see `text_stream.decode`."""
        return decode(self.byte_table, token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for inside a text; empty for an id that names no token."""
        plain = self.byte_table.plain
        return plain[token_id] if 0 <= token_id < len(plain) else b""

    def piece(self, token_id: int) -> str:
        """What a token stands for, for people: bytes that are no whole character show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """It is a special token, which `skip_special_tokens` leaves out."""
        return token_id in self.byte_table.special

    @cached_property
    def _literal_backend(self) -> Tokenizer:
        # A second one, because the switch is a property of the whole tokenizer and threads share it.
        backend = _load(self.bundle.tokenizer_json)
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _template(self) -> ChatTemplate | None:
        if not self.bundle.chat_template:
            return None
        return ChatTemplate(
            self.bundle.chat_template,
            bos_token=self.bundle.bos_token,
            eos_token=self.bundle.eos_token,
            limits=self._template_limits,
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _load(description: bytes) -> Tokenizer:
    try:
        backend = Tokenizer.from_str(description.decode())
    except Exception as error:  # `tokenizers` raises a bare Exception
        raise TokenizerError(f"the tokenizer cannot be loaded: {error}") from None
    backend.no_padding()
    backend.no_truncation()
    return backend


def _pieces(backend: Tokenizer) -> list[str | None]:
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    pieces: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        pieces[token_id] = token
    return pieces
