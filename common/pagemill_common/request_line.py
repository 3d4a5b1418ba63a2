"""The log line of a finished request: one message and one set of names in both tiers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pagemill_common.logs import Log

MESSAGE = "request finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """What either tier tells of a request; each adds fields of its own. Milliseconds count from its arrival there."""

    request_id: str
    model: str
    """The served name; empty, and left out, where it never came to be known."""
    code: str
    """The gRPC status."""
    reason: str
    """Of an error, or how the answer ended."""
    prompt_tokens: int | None
    completion_tokens: int
    ttft_ms: float | None
    duration_ms: float

    def write(self, log: Log, **more: object) -> None:
        """Writes the line. What is not known, None or empty, is left out."""
        fields = {**asdict(self), **more}
        log.info(MESSAGE, **{name: value for name, value in fields.items() if value is not None and value != ""})


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as the line tells them; None stays None."""
    return None if seconds is None else round(seconds * 1000, 2)
