"""From a checked request to what the engine runs: prompt ids and every knob decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pagemill.v1 import generation_pb2
from pagemill_common import errors
from pagemill_common.intake.chat import chat_messages, chat_variables
from pagemill_common.intake.checks import collect_vocabulary, seconds_of
from pagemill_common.intake.continuation import check_continuation
from pagemill_common.intake.facts import ModelFacts
from pagemill_common.intake.pieces import extend, largest
from pagemill_common.intake.resolve import ResolvedSampling, resolve_sampling, unique
from pagemill_common.intake.room import check_ids, check_size, fit, truncate
from pagemill_common.intake.violations import Violations
from pagemill_common.tokenisation.detokeniser import Detokeniser
from pagemill_common.tokenisation.errors import TemplateError, TokenizerError
from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with nothing left open but, perhaps, its seed."""

    prompt_ids: list[int]
    """After truncation."""
    max_tokens: int
    sampling: ResolvedSampling = field(default_factory=ResolvedSampling)
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    end_of_text_ids: tuple[int, ...] = ()
    """Empty where the request ignores end of text."""
    include_stop: bool = False
    skip_special_tokens: bool = True
    want_token_ids: bool = True
    allow_approximate_resume: bool = False
    timeout: float | None = None
    """Seconds; None: the caller set none."""

    @property
    def total_tokens(self) -> int:
        """Most tokens in prompt and output together."""
        return len(self.prompt_ids) + self.max_tokens

    def detokeniser(self, tokenizer: ModelTokenizer) -> Detokeniser:
        """A fresh detokeniser for one choice of this request."""
        return Detokeniser(
            tokenizer,
            skip_special_tokens=self.skip_special_tokens,
            stop_strings=self.stop_strings,
            include_stop=self.include_stop,
            min_tokens=self.min_tokens,
            stop_token_ids=(*self.stop_token_ids, *self.end_of_text_ids),
        )


def prepare(
    request: generation_pb2.GenerateRequest,
    tokenizer: ModelTokenizer,
    facts: ModelFacts,
    counted: Callable[[int], None] = lambda tokens: None,
) -> Prepared:
    """Renders, tokenises and completes a request that `check_fields` has passed. Takes CPU time: call it in a thread.

    What `to_forwarded` makes of the result prepares to the same again, the seed filled in.
    `counted` gets the prompt's tokens as soon as they are known, before it is asked whether they fit.
    Raises StatusError: INVALID_ARGUMENT for the prompt or ids outside the vocabulary, OUT_OF_RANGE where prompt and
    output cannot fit.
    """
    if request.HasField("token_ids"):
        check_ids(request, facts)
    found = Violations()
    collect_vocabulary(request, facts, found)
    check_continuation(request, facts, found)
    found.raise_any()
    path, ids = _encode(request, tokenizer, facts)
    if not ids:
        found.add(path, "holds no token of this model")
    elif path != "token_ids" and largest(ids) >= facts.vocabulary_size:
        found.add(path, f"holds a special token that the model does not know (id {largest(ids)})")
    found.raise_any()
    counted(len(ids))
    ids = truncate(request, ids, facts)
    counted(len(ids))
    stop = request.stop
    output = request.output
    max_tokens = fit(path, len(ids), stop, facts)
    return Prepared(
        prompt_ids=ids,
        max_tokens=max_tokens,
        sampling=resolve_sampling(request.sampling, facts),
        min_tokens=stop.min_tokens,
        stop_strings=unique(stop.strings),
        stop_token_ids=unique(stop.token_ids),
        end_of_text_ids=() if stop.ignore_end_of_text else facts.end_of_text_ids,
        include_stop=stop.include_stop,
        skip_special_tokens=output.skip_special_tokens if output.HasField("skip_special_tokens") else True,
        want_token_ids=output.token_ids if output.HasField("token_ids") else True,
        allow_approximate_resume=request.allow_approximate_resume,
        timeout=seconds_of(request),
    )


def _encode(
    request: generation_pb2.GenerateRequest, tokenizer: ModelTokenizer, facts: ModelFacts
) -> tuple[str, list[int]]:
    """The input's field path and its token ids. Raises OUT_OF_RANGE where it shows before encoding that they cannot
    fit.
    """
    match request.WhichOneof("input"):
        case "text":
            check_size("text", request.text, request, tokenizer, facts)
            add = request.add_special_tokens if request.HasField("add_special_tokens") else True
            return "text", tokenizer.encode(request.text, add_special_tokens=add)
        case "chat":
            rendered = render(request.chat, tokenizer)
            check_size("chat", rendered, request, tokenizer, facts)
            return "chat", encode_rendered(rendered, tokenizer)
        case _:
            ids: list[int] = []
            extend(ids, request.token_ids.ids)
            return "token_ids", ids


def render(chat: generation_pb2.ChatInput, tokenizer: ModelTokenizer) -> str:
    """A chat as its template writes it. Raises INVALID_ARGUMENT where the template refuses it."""
    add_prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    try:
        return tokenizer.render_chat(
            chat_messages(chat), add_generation_prompt=add_prompt, variables=chat_variables(chat)
        )
    except TemplateError as error:
        raise errors.bad_fields([("chat", str(error))]) from None
    except ValueError as error:
        raise errors.bad_fields([("chat.template_variables_json", str(error))]) from None


def encode_rendered(rendered: str, tokenizer: ModelTokenizer) -> list[int]:
    """Token ids of a chat. Raises INVALID_ARGUMENT where the template wrote what is no text."""
    try:
        return tokenizer.encode(rendered, add_special_tokens=False)
    except TokenizerError as error:
        raise errors.bad_fields([("chat", f"renders to something that is no text: {error}")]) from None
