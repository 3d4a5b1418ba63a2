"""What rendering one chat template may use, and the checks before an operation that would use more."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol

from pagemill_common.tokenisation.errors import TemplateError

__all__ = [
    "Budget",
    "bounded",
    "check_arguments",
    "check_nest",
    "check_operands",
    "check_result",
    "guarded_filter",
    "tick",
]

_MAX_INT_BITS = 10_000
_WIDE_FORMAT = re.compile(r"\d{5}|\*")
# Filters that write their value, or what they are given, as text.
_WRITING_FILTERS = frozenset(
    [
        "capitalize",
        "center",
        "e",
        "escape",
        "forceescape",
        "format",
        "indent",
        "lower",
        "pprint",
        "replace",
        "safe",
        "string",
        "striptags",
        "title",
        "tojson",
        "trim",
        "truncate",
        "upper",
        "urlencode",
        "urlize",
        "wordcount",
        "wordwrap",
        "xmlattr",
    ]
)
_current: ContextVar[Budget] = ContextVar("pagemill_template_budget")


class Budget:
    """Time and sizes of one rendering. Entered around it, so that operations deep inside find it."""

    __slots__ = ("_deadline", "_monotonic", "_token", "_written", "seconds", "value_size")

    def __init__(self, seconds: float, value_size: int, monotonic: Callable[[], float]) -> None:
        self.seconds = seconds
        self.value_size = value_size
        self._monotonic = monotonic
        self._deadline = monotonic() + seconds
        self._written = 0
        self._token: Token[Budget] | None = None

    def __enter__(self) -> Budget:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)

    def tick(self) -> None:
        """Raises TemplateError once the time is up."""
        if self._monotonic() > self._deadline:
            raise TemplateError(f"the chat template took more than {self.seconds:g} s")

    def check_size(self, size: int) -> None:
        """Raises TemplateError for a value of more than `value_size` characters or elements."""
        if size > self.value_size:
            raise TemplateError(f"the chat template made a value larger than {self.value_size} characters")

    def write(self, size: int) -> None:
        """Counts output, captured blocks included, which the pieces of the rendering do not show."""
        self._written += size
        self.check_size(self._written)


def _budget() -> Budget | None:
    return _current.get(None)


def tick() -> None:
    """A turn of a loop, a call or an operator."""
    budget = _budget()
    if budget is not None:
        budget.tick()


def bounded(value: Any) -> Any:
    """The value itself, once it is sure that writing it out stays within the budget; its size is counted."""
    size = check_nest(value)
    budget = _budget()
    if budget is not None:
        budget.write(size)
    return value


def check_nest(value: Any) -> int:
    """About how long a value is when written out. A nest that holds itself many times over is short in memory only.

    Raises TemplateError where that is too long.
    """
    budget = _budget()
    if isinstance(value, str) or budget is None:
        return len(value) if isinstance(value, str) else 0
    size, stack = 0, [value]
    while stack:
        item = stack.pop()
        size += len(item) if isinstance(item, Sized) else 1
        budget.check_size(size)
        if isinstance(item, Mapping):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
    return size


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses `+`, `*`, `**` and `%` whose result would be too large. Raises TemplateError."""
    tick()
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if operator in ("*", "**") and bits > _MAX_INT_BITS:
            raise TemplateError("the chat template computes with very large integers")
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        _check_size(len(left) + len(right))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, Sized) and isinstance(times, int):
                _check_size(len(value) * times)
    elif operator == "%" and isinstance(left, str):
        _check_format(left)
        check_nest(right)


def check_arguments(name: str, receiver: Any, arguments: Iterable[Any]) -> None:
    """Refuses a method or filter on a text whose result would be too large. Raises TemplateError."""
    tick()
    arguments = list(arguments)
    if not isinstance(receiver, str):
        return
    check_nest(arguments)
    if name in ("format", "format_map"):
        _check_format(receiver)
    if name == "replace" and len(arguments) >= 2:
        old, new = str(arguments[0]), str(arguments[1])
        _check_size(len(receiver) + receiver.count(old) * len(new))
    if name == "join" and arguments and isinstance(arguments[0], Sized):
        _check_size(len(receiver) * len(arguments[0]) + check_nest(arguments[0]))
    lines = 1 + receiver.count("\n") + receiver.count("\t")
    for argument in arguments:
        if isinstance(argument, int):
            _check_size(len(receiver) + argument * lines)
        elif isinstance(argument, str) and name == "indent":
            _check_size(len(receiver) + len(argument) * lines)


def check_result(value: Any) -> Any:
    """The value itself; raises TemplateError where it is too large."""
    if isinstance(value, str | list | tuple | dict):
        _check_size(len(value))
    return value


class _Filter(Protocol):
    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def guarded_filter(name: str, function: _Filter) -> Callable[..., Any]:
    """A filter whose arguments and result are checked."""
    leading = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)  # carries over the mark that says what jinja2 passes first
    def call(*args: Any, **kwargs: Any) -> Any:
        passed, value, rest = args[:leading], args[leading], args[leading + 1 :]
        options = [*rest, *kwargs.values()]
        if name == "join":
            value = list(value)
            check_arguments("join", str(options[0]) if options else "", [value])
        else:
            check_arguments(name, value, options)
            if name in _WRITING_FILTERS:
                check_nest([value, *options])
        return check_result(function(*passed, value, *rest, **kwargs))

    return call


def _check_size(size: int) -> None:
    budget = _budget()
    if budget is not None:
        budget.check_size(size)


def _check_format(pattern: str) -> None:
    if _WIDE_FORMAT.search(pattern):
        raise TemplateError("the chat template formats to a very large width")
