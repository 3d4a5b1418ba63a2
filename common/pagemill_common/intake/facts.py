"""What the intake has to know: limits of the server, facts of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagemill.v1 import model_pb2
from pagemill_common.grpc.options import MAX_MESSAGE_BYTES

__all__ = ["Limits", "ModelFacts"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes, whatever the model. The contract's own bounds are the defaults."""

    max_prompt_bytes: int = 4 << 20
    """UTF-8 bytes of a text, or of all of a chat's messages and variables."""
    max_variables_bytes: int = 1 << 20
    """UTF-8 bytes of a chat's variables."""
    max_variables_values: int = 1 << 17
    """Values in them, nested ones included. Reading a million would stop every other thread for 0.1 s and more."""
    max_tokenize_bytes: int = 1 << 20
    """UTF-8 bytes of a text, or of a rendered chat, for Tokenize: the reply has up to nine bytes for each."""
    max_reply_bytes: int = MAX_MESSAGE_BYTES
    """Bytes of a reply of Tokenize or Detokenize; gRPC would end a larger one without saying why."""
    max_prompt_tokens: int = 1 << 20
    """Token ids in a prompt of token ids."""
    max_messages: int = 4096
    max_role_length: int = 64
    max_logit_bias: int = 1024
    max_banned_tokens: int = 1024
    max_stop_strings: int = 16
    max_stop_string_bytes: int = 1024
    max_stop_tokens: int = 64


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a request is checked against and completed from."""

    name: str
    aliases: tuple[str, ...] = ()
    max_context_tokens: int = 0
    """Most tokens in prompt and output together, by the model."""
    max_request_tokens: int = 0
    """The same by the size of the KV cache; never more than the context."""
    vocabulary_size: int = 0
    sampling_defaults: model_pb2.SamplingDefaults = field(default_factory=model_pb2.SamplingDefaults)
    end_of_text_ids: tuple[int, ...] = ()
    has_chat_template: bool = False

    @classmethod
    def from_model(cls, model: model_pb2.Model, end_of_text_ids: Sequence[int]) -> ModelFacts:
        """The facts of a served model; `end_of_text_ids` are its tokenizer's."""
        return cls(
            name=model.name,
            aliases=tuple(model.aliases),
            max_context_tokens=model.max_context_tokens,
            max_request_tokens=model.max_request_tokens or model.max_context_tokens,
            vocabulary_size=model.vocabulary_size,
            sampling_defaults=model.sampling_defaults,
            end_of_text_ids=tuple(end_of_text_ids),
            has_chat_template=model.has_chat_template,
        )

    @property
    def max_total_tokens(self) -> int:
        """Most tokens in prompt and output together: what context and cache both allow."""
        return min(self.max_context_tokens, self.max_request_tokens)
