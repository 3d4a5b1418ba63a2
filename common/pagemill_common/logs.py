"""Log lines on standard error: JSON for machines, or readable on a terminal.

`log = logs.get("pagemill.router"); log.info("request finished", request_id=..., tokens=...)`. Values of fields are
plain; a `trace_id` is added where a span is current and none is given.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from opentelemetry import trace

FORMATS = ("auto", "json", "text")
"""Values of `--log-format`; auto is text on a terminal, else JSON."""
LEVELS = ("debug", "info", "warning", "error")
"""Values of `--log-level`."""

_ROOT = "pagemill"
"""All our loggers are below this one, and `--log-level` is its level."""
_FIELDS = "pagemill_fields"


class Log:
    """A logger whose lines carry named fields."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, **fields: Any) -> None:
        """A line for whoever works on the code."""
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """A line about something that went as it should."""
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """A line about something that an operator may want to look at."""
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """A line about a failure, with the trace of an exception where one is given."""
        self._emit(logging.ERROR, message, fields, exc_info)

    def _emit(self, level: int, message: str, fields: dict[str, Any], failure: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if not fields.get("trace_id"):
            context = trace.get_current_span().get_span_context()
            if context.is_valid:
                fields["trace_id"] = f"{context.trace_id:032x}"
        self._logger.log(level, message, exc_info=failure, extra={_FIELDS: fields})


def get(name: str) -> Log:
    """The logger called `name`, such as pagemill.router.relay; ValueError where `--log-level` would not reach it."""
    if name.partition(".")[0] != _ROOT:
        raise ValueError(f"{name!r} is not a logger below {_ROOT!r}")
    return Log(logging.getLogger(name))


def configure(
    log_format: str = "auto",
    level: str = "info",
    *,
    service: str = "",
    instance: str = "",
    stream: TextIO | None = None,
) -> None:
    """Sets up the process's logging, once at start. `service` and `instance` go into every JSON line."""
    out = stream or sys.stderr
    as_json = log_format == "json" or (log_format == "auto" and not out.isatty())
    constant = {key: value for key, value in (("service", service), ("instance", instance)) if value}
    handler = logging.StreamHandler(out)
    handler.setFormatter(_JsonFormatter(constant) if as_json else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, constant: dict[str, str]) -> None:
        super().__init__()
        self._constant = constant

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._constant,
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        return text if text.isprintable() else json.dumps(line, default=str)


class _TextFormatter(logging.Formatter):
    """`12:00:01.250 INFO    pagemill.router: message  key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        told = ((key, value) for key, value in getattr(record, _FIELDS, {}).items() if value not in ("", None))
        fields = "".join(f"  {key}={_plain(value)}" for key, value in told)
        milliseconds = int(record.msecs)
        head = f"{clock}.{milliseconds:03d} {record.levelname:<7} {record.name}: {_shown(record.getMessage())}{fields}"
        if record.exc_info and record.exc_info[0] is not None:
            head += "".join(f"\n{_shown(line)}" for line in self.formatException(record.exc_info).split("\n"))
        return head


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return _shown(json.dumps(text, ensure_ascii=False) if not text or any(c.isspace() for c in text) else text)


def _shown(text: str) -> str:
    """The text with whatever is not printable escaped: callers choose ids, and a terminal obeys what it reads."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
