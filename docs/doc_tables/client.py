"""Tables of the Python client: methods, options, exceptions, reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pagemill
from doc_tables.markdown import code, commented_fields, first_line, table, without_none
from pagemill import errors, options, reasons
from pagemill.cli.failures import exit_code

_OPTIONS = "options"
"""How the signatures spell the keywords of GenerateOptions."""


def methods() -> str:
    """One row for each public method of Client, in the order of the code."""
    rows = [
        (code(_call(method)), _result(method), first_line(method.__doc__)) for _, method in _public(pagemill.Client)
    ]
    return table(("method", "gives", "what it does"), rows)


def check_async_client() -> str:
    """What AsyncClient lacks or takes differently; empty where it is Client with `await`."""
    twins = dict(_public(pagemill.AsyncClient))
    wrong = [
        name
        for name, method in _public(pagemill.Client)
        if name not in _BLOCKING_ONLY and (name not in twins or _call(twins[name]) != _call(method))
    ]
    return (
        f"docs/api.md says that AsyncClient has the methods of Client; these differ: {', '.join(wrong)}"
        if wrong
        else ""
    )


_BLOCKING_ONLY = ("service_config",)


def generate_options() -> str:
    """One row for each keyword of `generate`."""
    rows = [
        (code(name), code(without_none(annotation)), note)
        for name, annotation, note in commented_fields(options, "GenerateOptions")
    ]
    return table(("option", "type", "what it does"), rows)


def exceptions() -> str:
    """One row for each exported exception."""
    found = [
        kind
        for name in pagemill.__all__
        if isinstance(kind := getattr(pagemill, name), type) and issubclass(kind, errors.PagemillError)
    ]
    order = list(vars(errors).values())
    rows = [_exception(kind) for kind in sorted(found, key=order.index)]
    return table(("exception", "is a", "gRPC status", "meaning", "it also has", "exit status"), rows)


def _exception(kind: type[errors.PagemillError]) -> tuple[str, ...]:
    own = [name for name, _, _ in commented_fields(errors, kind.__name__) if name != "default_code"]
    is_base = kind is errors.PagemillError
    return (
        code(kind.__name__),
        "" if is_base else code(kind.__bases__[0].__name__),
        "any other" if is_base else kind.default_code.name,
        first_line(kind.__doc__),
        ", ".join(code(f".{name}") for name in own),
        str(int(exit_code(kind("")))),
    )


def reason_table() -> str:
    """One row for each value of Reason."""
    return table(("reason", "meaning"), [(code(name), note) for name, _, note in commented_fields(reasons, "Reason")])


def _public(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(kind).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            yield name, value


def _call(method: Callable[..., Any]) -> str:
    """`tokenize(text, *, model, timeout)`: the parameters' names, what may be left out included."""
    parts: list[str] = []
    keyword_only = False
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        parts.append(f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name)
    return f"{method.__name__}({', '.join(parts)})"


def _result(method: Callable[..., Any]) -> str:
    text = str(inspect.signature(method).return_annotation)
    for module in ("generation_pb2.", "admin_pb2.", "model_pb2."):
        text = text.replace(module, "")
    return "" if text == "None" else code(text)
