"""From errors to a line for people, what to do next, and an exit status."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from pagemill import errors
from pagemill.cli.console import counted
from pagemill.cli.options import flag_of
from pagemill.fields import option_of
from pagemill.reasons import Reason


class ExitCode(IntEnum):
    """Exit statuses of the `pagemill` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    BUSY = 4
    TIMEOUT = 5
    DENIED = 6
    START = 7
    INTERRUPTED = 130
    PIPE_CLOSED = 141


EXIT_CODES_HELP = (
    "Exit status: 0 done, 1 failed, 2 wrong usage, 3 the request is refused (bad value, too long, no such model), "
    "4 nothing can answer right now (no server, no replica, queue full, replica lost): try again, "
    "5 the timeout passed, 6 not allowed, 7 a local process could not start or has ended, 130 interrupted by Ctrl-C, "
    "141 whoever read the output has gone (`| head`)."
)

_EXIT: tuple[tuple[type[errors.PagemillError], ExitCode], ...] = (
    (errors.DeadlineExceeded, ExitCode.TIMEOUT),
    (errors.Unavailable, ExitCode.BUSY),
    (errors.Exhausted, ExitCode.BUSY),
    (errors.Unauthenticated, ExitCode.DENIED),
    (errors.PermissionDenied, ExitCode.DENIED),
    (errors.InvalidRequest, ExitCode.REFUSED),
    (errors.NotFound, ExitCode.REFUSED),
    (errors.AlreadyExists, ExitCode.REFUSED),
    (errors.NotSupported, ExitCode.REFUSED),
)


def exit_code(error: errors.PagemillError) -> ExitCode:
    """The exit status for an error of a call."""
    return next((code for kind, code in _EXIT if isinstance(error, kind)), ExitCode.FAILED)


def headline(error: errors.PagemillError) -> str:
    """What is wrong, in one line."""
    if isinstance(error, errors.InvalidRequest) and error.violations:
        first, *rest = error.violations
        more = f" (and {len(rest)} more)" if rest else ""
        return f"{_violation(first)}{more}"
    if isinstance(error, errors.DeadlineExceeded):
        return f"the timeout passed{_WHILE.get(error.stage or '', '')}"
    return error.message


def advice(error: errors.PagemillError) -> list[str]:
    """What to do next."""
    rest = error.violations[1:] if isinstance(error, errors.InvalidRequest) else ()
    lines = [_violation(v) for v in rest]
    find = next((make for kind, make in _ADVICE if isinstance(error, kind)), None)
    if find is not None:
        lines.append(find(error))
    return [line for line in lines if line]


def as_json(error: errors.PagemillError) -> dict[str, Any]:
    """The error as one JSON object."""
    found: dict[str, Any] = {
        "code": str(error.code.name),
        "reason": error.reason,
        "message": error.message,
        "retry_after": error.retry_after,
    }
    if isinstance(error, errors.InvalidRequest):
        found["violations"] = [{"field": v.field, "description": v.description} for v in error.violations]
    if isinstance(error, errors.ReplicaLost):
        found["tokens_per_choice"] = list(error.tokens_per_choice)
    if isinstance(error, errors.DeadlineExceeded):
        found["stage"] = error.stage
    if isinstance(error, errors.InternalError):
        found["incident"] = error.incident
    return {"error": found}


def _violation(violation: errors.Violation) -> str:
    """What is wrong with a field, after the flag that sets it."""
    flag = flag_of(option_of(violation.field) or "")
    if flag is None:
        return f"{violation.field}: {violation.description}"
    path = "" if violation.field == flag[2:] else f" ({violation.field})"
    return f"{flag}{path}: {violation.description}"


_WHILE = {
    "queue": " while the request waited for a replica",
    "prefill": " while the prompt was being read",
    "decode": " while the answer was being written",
}
_IN_TIME = {
    "queue": "raise --timeout; `pagemill replicas` shows how full they are, and whether any takes requests.",
    "prefill": "raise --timeout, or shorten the prompt.",
    "decode": "raise --timeout, or lower --max-tokens.",
}


def _unavailable(error: errors.PagemillError) -> str:
    if not error.details:
        return "is a server there? Start one with `pagemill serve`, or name it with --target or PAGEMILL_TARGET."
    if error.reason == Reason.NO_REPLICA:
        return f"`pagemill replicas` shows what the router sees.{_again(error)}"
    return f"send it again.{_again(error)}"


def _again(error: errors.PagemillError) -> str:
    return f" Try again in {error.retry_after:.1f} s." if error.retry_after else ""


_ADVICE: tuple[tuple[type[errors.PagemillError], Callable[[Any], str]], ...] = (
    (errors.TooLong, lambda _: "lower --max-tokens, shorten the prompt, or cut it with --truncate-prompt 0."),
    (errors.InvalidRequest, lambda _: ""),
    (errors.ModelNotFound, lambda _: "`pagemill models` lists what is served."),
    (errors.NotFound, lambda _: "`pagemill replicas` lists the replicas."),
    (errors.AlreadyExists, lambda _: "choose another --request-id, or wait until that request has ended."),
    (
        errors.NotSupported,
        lambda e: "leave that option out." if e.field else "name a router with --target or PAGEMILL_TARGET.",
    ),
    (errors.Exhausted, lambda e: f"the service is full.{_again(e)} More replicas or a shorter answer help."),
    (
        errors.ReplicaLost,
        lambda e: f"{counted(sum(e.tokens_per_choice), 'token')} had arrived; send it again for a whole answer.",
    ),
    (errors.NotReady, lambda _: "`pagemill replicas` shows why; it may just be starting."),
    (errors.Unavailable, _unavailable),
    (
        errors.DeadlineExceeded,
        lambda e: _IN_TIME.get(e.stage or "", "raise --timeout; `pagemill replicas` shows whether any takes requests."),
    ),
    (errors.Unauthenticated, lambda _: "this server wants to know who calls."),
    (errors.PermissionDenied, lambda _: "ask the server's operators for access."),
    (
        errors.InternalError,
        lambda e: f"the server's log tells more under {e.incident}." if e.incident else "see the server's log.",
    ),
)
