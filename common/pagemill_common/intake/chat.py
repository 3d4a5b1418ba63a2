"""Chats: checks, and the values that templates get."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from pagemill.v1 import generation_pb2
from pagemill_common.intake.facts import Limits
from pagemill_common.intake.violations import Violations
from pagemill_common.tokenisation.template import RESERVED_VARIABLES

__all__ = ["chat_messages", "chat_variables", "check_chat"]

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check_chat(chat: generation_pb2.ChatInput, limits: Limits, found: Violations) -> None:
    """Roles, sizes and variables of a chat; whether the messages are too many is asked elsewhere."""
    if not chat.messages:
        found.add("chat.messages", "must hold at least one message")
    variables = len(chat.template_variables_json.encode())
    size = variables
    for index, message in enumerate(chat.messages[: limits.max_messages]):
        size += len(message.content.encode()) + len(message.name.encode())
        if not 1 <= len(message.role) <= limits.max_role_length:
            found.add(
                f"chat.messages[{index}].role",
                f"must have 1 to {limits.max_role_length} characters, not {len(message.role)}",
            )
    if size > limits.max_prompt_bytes:
        found.add("chat", f"holds {size} bytes; at most {limits.max_prompt_bytes} are allowed")
    elif variables > limits.max_variables_bytes:
        text = f"holds {variables} bytes; at most {limits.max_variables_bytes} are allowed"
        found.add("chat.template_variables_json", text)
    elif _values(chat.template_variables_json, limits.max_variables_values) > limits.max_variables_values:
        found.add("chat.template_variables_json", f"holds more than {limits.max_variables_values} values")
    elif variables:
        try:
            chat_variables(chat)
        except ValueError as error:
            found.add("chat.template_variables_json", str(error))


def chat_messages(chat: generation_pb2.ChatInput) -> list[dict[str, Any]]:
    """Messages as templates expect them; `name` only where there is one."""
    return [
        {"role": message.role, "content": message.content, **({"name": message.name} if message.name else {})}
        for message in chat.messages
    ]


def chat_variables(chat: generation_pb2.ChatInput) -> dict[str, Any]:
    """The template's further variables. Raises ValueError, for the caller, where they are no usable JSON object."""
    text = chat.template_variables_json
    if not text:
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if _HALF_PAIR.search(text) and not _is_text(value):
        raise ValueError("holds half a surrogate pair, which is no character")
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    taken = sorted(RESERVED_VARIABLES & set(value))
    if taken:
        raise ValueError(f"may not set {taken[0]!r}")
    return value


def _values(text: str, most: int) -> int:
    """About how many values a JSON text holds, to be asked before it is read; never too few."""
    if _separators(text) <= most:
        return _separators(text)
    return _separators(_STRING.sub("", text))


def _separators(text: str) -> int:
    return sum(map(text.count, ",:[{"))


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
