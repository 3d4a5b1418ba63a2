"""What can be asked of an answer, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from pagemill.v1 import generation_pb2 as pb

ChatTurn = Mapping[str, str] | pb.ChatMessage
"""One message of a chat: a mapping with `role`, `content` and perhaps `name`, or the message itself."""


class GenerateOptions(TypedDict, total=False):
    """What can be asked of an answer. None, or left out, takes the server's default."""

    model: str | None
    """The served name or an alias. The only model where left out."""
    request_id: str | None
    """The caller's id, at most 128 of [A-Za-z0-9._:-]; drawn where left out, once for all tries of the call."""
    timeout: float | None
    """Seconds for the whole answer, above 0."""
    max_tokens: int | None
    """Most tokens to generate, at least 1; what is left of the context where left out."""
    min_tokens: int | None
    """No stop is honoured before this many tokens."""
    stop: str | Sequence[str] | None
    """Strings that end the text, at most 16."""
    stop_token_ids: Sequence[int] | None
    """Tokens that end the text, at most 64."""
    include_stop: bool | None
    """Leaves the stop string, or the text of the stop token, in the output."""
    ignore_end_of_text: bool | None
    """Goes on past the model's end-of-text tokens."""
    temperature: float | None
    """[0, 100]; 0 is greedy."""
    top_k: int | None
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float | None
    """Keep the smallest set of tokens whose probability reaches this, (0, 1]."""
    min_p: float | None
    """Drop tokens less likely than this share of the most likely one, [0, 1]."""
    repetition_penalty: float | None
    """(0, 100]; 1 is none."""
    frequency_penalty: float | None
    """[-100, 100]; 0 is none."""
    presence_penalty: float | None
    """[-100, 100]; 0 is none."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these token ids, each in [-100, 100]."""
    banned_token_ids: Sequence[int] | None
    """Token ids that are never drawn."""
    seed: int | None
    """Seed of the random bits, 64 bits unsigned; drawn by the router where left out."""
    skip_special_tokens: bool | None
    """Leaves special tokens out of the text; true where left out."""
    return_token_ids: bool | None
    """Carries token ids beside the text; true where left out."""
    add_special_tokens: bool | None
    """Adds the tokenizer's own special tokens to a plain-text prompt; true where left out."""
    truncate_prompt: int | None
    """Keeps only the last N prompt tokens; 0 keeps as many as leave room for max_tokens."""
    add_generation_prompt: bool | None
    """Adds the header that asks the assistant to speak, to a chat; true where left out."""
    template_variables: Mapping[str, object] | None
    """Further variables for the chat template."""
    allow_approximate_resume: bool | None
    """Lets the answer resume, after a failure, on a replica whose arithmetic differs."""
    n: int | None
    """How many independent answers."""
    priority: int | None
    """Larger is more urgent."""
    tenant: str | None
    """On whose behalf."""
    cache_salt: str | None
    """Keeps this request's cached prefix from others with another salt."""
    session_key: str | None
    """Requests with the same key prefer the same replica."""
    adapter: str | None
    """A fine-tuned adapter by name."""
    logprobs: int | None
    """Log-probabilities of the tokens, and of this many of the most likely ones, [0, 20]."""
    prompt_logprobs: bool | None
    """Also those of the prompt."""
    processed_logprobs: bool | None
    """After penalties, temperature and cuts rather than before."""
    json_schema: str | Mapping[str, object] | None
    """A JSON schema the output must follow."""
    regex: str | None
    """A regular expression the output must match."""
    grammar: str | None
    """A Lark grammar the output must follow."""
