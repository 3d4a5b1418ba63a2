"""Chat templates: jinja2 in an immutable sandbox, with limits.

A template belongs to the model that the operator chose; what callers send (messages, variables) is data. The limits
keep a faulty template, and input that makes a template work hard, from taking a router down.

What holds: a template reaches no attribute that begins with an underscore and changes no value that it was given;
rendering ends with a TemplateError soon after `seconds` (looked at with every piece of output, turn of a loop, call,
filter and operator) and before its output passes `output_bytes`; no single operation makes a text or list longer than
`value_size`, or an integer of more than 10,000 bits.

What does not hold: a Python thread cannot be interrupted, so one filter or comparison, once begun, runs to its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from pagemill_common.tokenisation.budget import Budget, bounded
from pagemill_common.tokenisation.errors import TemplateError
from pagemill_common.tokenisation.sandbox import ChatEnvironment

__all__ = ["RESERVED_VARIABLES", "ChatTemplate", "TemplateLimits"]

RESERVED_VARIABLES = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
"""Names that a caller's variables may not take."""

_MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What rendering one chat may cost."""

    output_bytes: int = 6 << 20
    """Most bytes of UTF-8 that a template may write: the largest chat, and half as much again around it."""
    seconds: float = 5.0
    """Most seconds that it may take."""
    value_size: int = 32 << 20
    """Most characters of a text, or elements of a list, made on the way."""


class ChatTemplate:
    """One model's template. Threads may share it."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        limits: TemplateLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises TemplateError for a template that does not compile. `wall_clock` is what `strftime_now` shows."""
        if len(source) > _MAX_TEMPLATE_BYTES:
            raise TemplateError("the chat template is larger than 1 MiB")
        self._limits = limits or TemplateLimits()
        self._monotonic = monotonic
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        environment = ChatEnvironment()
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: wall_clock().strftime(pattern)
        try:
            with self._budget():  # jinja2 computes constant filters while it compiles
                self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise TemplateError(f"the chat template does not compile: {_one_line(error)}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as text. Raises TemplateError where the template refuses it, fails, or passes a limit."""
        taken = sorted(RESERVED_VARIABLES & set(variables or {}))
        if taken:
            raise TemplateError(f"a variable may not be called {taken[0]!r}")
        context = {
            # Templates test both of these with `is not none`.
            "tools": None,
            "documents": None,
            **(variables or {}),
            **self._fixed,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        with self._budget() as budget:
            try:
                return self._join(context, budget)
            except TemplateError:
                raise
            except RecursionError:
                raise TemplateError("the chat template recurses too deeply") from None
            except Exception as error:  # a template may raise anything that its expressions raise
                raise TemplateError(f"the chat template refused the chat: {_one_line(error)}") from None

    def _budget(self) -> Budget:
        return Budget(self._limits.seconds, self._limits.value_size, self._monotonic)

    def _join(self, context: dict[str, Any], budget: Budget) -> str:
        parts: list[str] = []
        left = self._limits.output_bytes
        for part in self._template.generate(context):
            budget.tick()
            left -= len(part.encode("utf-8", "surrogatepass"))
            if left < 0:
                raise TemplateError(f"the chat template wrote more than {self._limits.output_bytes} bytes")
            parts.append(part)
        return "".join(parts)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]


def _raise_exception(message: object = "") -> str:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; models were trained on plain JSON."""
    return json.dumps(
        bounded(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
