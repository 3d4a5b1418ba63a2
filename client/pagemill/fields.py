"""The fields of a request: which option sets which, and how values get into them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pagemill.errors import InvalidRequest, Violation
from pagemill.reasons import Reason

FIELDS: dict[str, str] = {
    "model": "model",
    "request_id": "request_id",
    "max_tokens": "stop.max_tokens",
    "min_tokens": "stop.min_tokens",
    "stop": "stop.strings",
    "stop_token_ids": "stop.token_ids",
    "include_stop": "stop.include_stop",
    "ignore_end_of_text": "stop.ignore_end_of_text",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "repetition_penalty": "sampling.repetition_penalty",
    "frequency_penalty": "sampling.frequency_penalty",
    "presence_penalty": "sampling.presence_penalty",
    "logit_bias": "sampling.logit_bias",
    "banned_token_ids": "sampling.banned_token_ids",
    "seed": "sampling.seed",
    "skip_special_tokens": "output.skip_special_tokens",
    "return_token_ids": "output.token_ids",
    "logprobs": "output.logprobs.top",
    "prompt_logprobs": "output.logprobs.prompt",
    "processed_logprobs": "output.logprobs.processed",
    "add_special_tokens": "add_special_tokens",
    "truncate_prompt": "truncate_prompt",
    "add_generation_prompt": "chat.add_generation_prompt",
    "template_variables": "chat.template_variables_json",
    "allow_approximate_resume": "allow_approximate_resume",
    "n": "n",
    "priority": "priority",
    "tenant": "tenant",
    "cache_salt": "cache_salt",
    "session_key": "session_key",
    "adapter": "adapter",
    "json_schema": "structured_output.json_schema",
    "regex": "structured_output.regex",
    "grammar": "structured_output.grammar",
}
"""Option to the path of the field it sets; `timeout` is apart because it is a message of its own."""

_OPTIONS = {path: option for option, path in FIELDS.items()}


def option_of(path: str) -> str | None:
    """The option that sets the field at a path such as `sampling.top_k` or `stop.strings[3]`; None where none does."""
    bare = path.partition("[")[0]
    return "timeout" if bare == "timeout" else _OPTIONS.get(bare)


class Writer:
    """Sets fields by their path and collects what does not fit."""

    def __init__(self, root: Message) -> None:
        self._root = root
        self.violations: list[Violation] = []

    def put(self, path: str, value: object) -> None:
        """Sets a field: a scalar, a list or a map."""
        *parents, name = path.split(".")
        message = self._root
        for parent in parents:
            message = getattr(message, parent)
        try:
            if isinstance(value, Mapping):
                target = getattr(message, name)
                for key, item in value.items():
                    target[key] = item
            elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError) as error:
            self.refuse(path, misfit(value, error, message, name))

    def refuse(self, path: str, why: str) -> None:
        """Notes that a value is wrong."""
        self.violations.append(Violation(path, why))

    def check(self) -> None:
        """Raises InvalidRequest where anything did not fit."""
        if self.violations:
            raise invalid(self.violations)


def invalid(violations: Sequence[Violation]) -> InvalidRequest:
    """The error for these violations, as a server would report them."""
    text = "; ".join(f"{_named(v.field)}: {v.description}" for v in violations)
    error = InvalidRequest(text, reason=Reason.INVALID_FIELD)
    error.violations = tuple(violations)
    return error


def _named(path: str) -> str:
    option = option_of(path)
    return path if option in (None, path) else f"{option} ({path})"


_WHOLE = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
}


def misfit(value: object, error: Exception, message: Message, name: str) -> str:
    """Why a value does not fit a field of a message."""
    whole = _WHOLE.get(message.DESCRIPTOR.fields_by_name[name].cpp_type)
    if whole is None or isinstance(value, Iterable):
        return f"{shown(value)} does not fit: {error}"
    return f"must be a whole number from {whole[0]} to {whole[1]}, not {shown(value)}"


def shown(value: object) -> str:
    """A value for a message, not too long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
