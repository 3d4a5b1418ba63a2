"""Chats: checks, and the values that templates get."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from pagemill.v1 import generation_pb2
from pagemill_common.intake.facts import Limits
from pagemill_common.intake.violations import Violations
from pagemill_common.tokenisation.template import RESERVED_VARIABLES

__all__ = ["chat_messages", "chat_variables", "check_chat"]


def check_chat(chat: generation_pb2.ChatInput, limits: Limits, found: Violations) -> None:
    """Messages, roles, sizes and variables of a chat."""
    if not chat.messages:
        found.add("chat.messages", "must hold at least one message")
    found.count("chat.messages", len(chat.messages), limits.max_messages)
    size = len(chat.template_variables_json.encode())
    for index, message in enumerate(chat.messages[: limits.max_messages]):
        size += len(message.content.encode()) + len(message.name.encode())
        if not 1 <= len(message.role) <= limits.max_role_length:
            found.add(
                f"chat.messages[{index}].role",
                f"must have 1 to {limits.max_role_length} characters, not {len(message.role)}",
            )
    if size > limits.max_prompt_bytes:
        found.add("chat", f"holds {size} bytes; at most {limits.max_prompt_bytes} are allowed")
    elif chat.template_variables_json:
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
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    taken = sorted(RESERVED_VARIABLES & set(value))
    if taken:
        raise ValueError(f"may not set {taken[0]!r}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
