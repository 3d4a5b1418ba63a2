"""Settings of a tier: one class, one default for each field, from flags and environment.

A tier subclasses `Settings` with `env_prefix` (such as PAGEMILL_ROUTER_) and fields that all have a default and a
description. A flag `--queue-limit` beats the variable PAGEMILL_ROUTER_QUEUE_LIMIT, which beats the default. Kubernetes
sets variables such as PAGEMILL_ROUTER_PORT for a service of that name, so no field may be called `port`, `host` or
`service_*`.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, Union, get_args, get_origin

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from pagemill_common.setting_values import (
    Address,
    Endpoint,
    OutputFile,
    check_address,
    parse_duration,
    parse_list,
    parse_size,
    show_duration,
    show_size,
)

_RESERVED = re.compile(r"port|host|service_.*|.*_port|.*_tcp.*")

LogFormat = Literal["auto", "json", "text"]
"""auto: readable on a terminal, else JSON."""
LogLevel = Literal["debug", "info", "warning", "error"]
"""The least grave lines that are written."""


class Contradiction(NamedTuple):
    """Settings that are right each by itself and wrong together."""

    field: str
    """The one to change."""
    message: str
    beside: tuple[str, ...] = ()
    """The others; nothing is said while one of all these is wrong by itself."""


class ContradictionsError(ValueError):
    """Every contradiction between the settings."""

    def __init__(self, found: Sequence[Contradiction]) -> None:
        super().__init__("; ".join(f"{flag(one.field)}: {one.message}" for one in found))
        self.found = tuple(found)


class Settings(BaseSettings):
    """Base of a tier's settings; see the module."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, enable_decoding=False, env_ignore_empty=True)

    program: ClassVar[str] = "pagemill"
    summary: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses field names that clash with Kubernetes' own variables, and fields nobody described."""
        for name, field in cls.model_fields.items():
            if _RESERVED.fullmatch(name):
                raise TypeError(f"{cls.__name__}.{name}: Kubernetes sets variables of this form; rename the field")
            if field.is_required() or not field.description:
                raise TypeError(f"{cls.__name__}.{name}: a setting needs a default and a description")

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None) -> Self:
        """Settings from `argv` (default: the process's own) and environment; prints what is wrong and exits with 2."""
        given = {k: v for k, v in vars(cls._parser().parse_args(argv)).items() if v is not None}
        try:
            return cls(**given)
        except ValidationError as failure:
            _fail(cls.program, cls._problems(failure, given))

    def contradictions(self) -> Iterable[Contradiction]:
        """What is wrong between settings, each of them right by itself."""
        return ()

    @model_validator(mode="after")
    def _check_contradictions(self) -> Self:
        if found := list(self.contradictions()):
            raise ContradictionsError(found)
        return self

    @classmethod
    def _problems(cls, failure: ValidationError, given: dict[str, Any]) -> list[str]:
        """A line for each wrong setting and each contradiction between the others."""
        errors: list[dict[str, Any]] = [dict(error) for error in failure.errors()]
        wrong = {str(error["loc"][0]) for error in errors if error["loc"]}
        lines = [_explain(cls, error, set(given)) for error in errors if error["loc"]]
        if wrong:
            # Contradictions are looked for only between right settings, so stand-ins are put in for the wrong ones.
            stand_ins = {name: cls.model_fields[name].get_default(call_default_factory=True) for name in wrong}
            try:
                cls(**(given | stand_ins))
            except ValidationError as second:
                errors = [dict(error) for error in second.errors()]
        contradictions = (error.get("ctx", {}).get("error") for error in errors if not error["loc"])
        found = [one for raised in contradictions if isinstance(raised, ContradictionsError) for one in raised.found]
        return lines + [f"{flag(one.field)}: {one.message}" for one in found if not wrong & {one.field, *one.beside}]

    @classmethod
    def fail(cls, field: str, message: str) -> NoReturn:
        """Ends the process with 2 and a line that names the flag of `field`, for what only shows after parsing."""
        _fail(cls.program, [f"{flag(field)}: {message}"])

    @classmethod
    def settings_table(cls) -> list[tuple[str, str, str, str]]:
        """(flag, environment variable, default, description) of every setting, for the documentation."""
        return [
            (flag(name), variable(cls, name), _show_default(field), field.description or "")
            for name, field in cls.model_fields.items()
            if not _hidden(field)
        ]

    @classmethod
    def _parser(cls) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=cls.program, description=cls.summary, allow_abbrev=False)
        for name, field in cls.model_fields.items():
            if _hidden(field):
                parser.add_argument(flag(name), dest=name, default=None, help=argparse.SUPPRESS)
                continue
            text = f"{field.description} [default: {_show_default(field)}] [{variable(cls, name)}]".replace("%", "%%")
            common: dict[str, Any] = {"dest": name, "default": None, "help": text}
            if _plain_type(field.annotation) is bool:
                parser.add_argument(flag(name), action=argparse.BooleanOptionalAction, **common)
            else:
                parser.add_argument(flag(name), metavar=_metavar(field), **common)
        return parser


class TierSettings(Settings):
    """What a router and a replica can both be told of what others see of them."""

    metrics_listen: Address | None = Field(None, description="Address of the Prometheus port; port 0 takes a free one.")
    otlp_endpoint: Endpoint | None = Field(
        None, description="OTLP receiver over gRPC for traces, such as http://localhost:4317."
    )
    log_format: LogFormat = Field("auto", description="auto: readable on a terminal, else JSON; or json, or text.")
    log_level: LogLevel = Field("info", description="The least grave lines that are written.")
    reflection: bool = Field(False, description="Serve gRPC reflection and channelz.")
    status_file: OutputFile | None = Field(None, description="File in which to tell, as JSON, how far the start is.")


def default_name() -> str:
    """The name of a process in its pool: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def variable(settings: type[Settings], name: str) -> str:
    """The environment variable of a field."""
    return (str(settings.model_config.get("env_prefix", "")) + name).upper()


def _explain(settings: type[Settings], error: dict[str, Any], given: set[str]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    where = flag(name) if name in given else f"{variable(settings, name)} (or {flag(name)})"
    shown = "" if "is not a" in message else f", not {error['input']!r}"
    return f"{where}: {message}{shown}"


def _fail(program: str, problems: Sequence[str]) -> NoReturn:
    for problem in problems:
        print(f"{program}: {problem}", file=sys.stderr)  # noqa: T201 - before logging is set up
    print(f"{program}: see {program} --help", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


def _plain_type(annotation: Any) -> Any:
    """The type without Annotated and without None."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation


def _hidden(field: FieldInfo) -> bool:
    """For tests of the tiers: works, but help and documentation do not name it."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("hidden"))


def _metavar(field: FieldInfo) -> str:
    kind = _plain_type(field.annotation)
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    marks: list[Any] = [*field.metadata, field.annotation]
    text = repr(marks)
    for function, shown in ((parse_size, "SIZE"), (parse_duration, "DURATION"), (check_address, "HOST:PORT")):
        if function.__name__ in text:
            return shown
    if parse_list.__name__ in text:
        return "A,B,..."
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _show_default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        # It depends on machine and process; the description says how.
        return "computed"
    value = field.get_default()
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    shown = {"SIZE": show_size, "DURATION": show_duration}.get(_metavar(field), str)
    return ",".join(value) if isinstance(value, tuple) else shown(value)
