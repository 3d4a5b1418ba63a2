"""Readiness by progress: a pure judgement over what the engine does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of the engine at one moment. Times are monotonic seconds."""

    warm: bool
    """It has answered that it takes requests."""
    alive: bool
    """Its process runs."""
    busy: bool
    """It has work, so steps must go on."""
    last_step: float
    """When it last reported a step, or was given work while idle, whichever is later."""


def not_ready_because(progress: Progress, *, draining: bool, now: float, stall_after: float) -> str:
    """Why the replica takes no traffic; empty where it does. An idle engine is fine however long it idles."""
    if not progress.alive:
        return "the engine is gone"
    if not progress.warm:
        return "the model is loading"
    if draining:
        return "draining"
    if stalled_for(progress, now) > stall_after:
        return stall_text(stalled_for(progress, now))
    return ""


def stalled_for(progress: Progress, now: float) -> float:
    """Seconds for which a live engine has had work and made no step; 0 where it has none or is not up."""
    return now - progress.last_step if progress.warm and progress.alive and progress.busy else 0.0


def stall_text(seconds: float) -> str:
    """A stall in words."""
    return f"the engine has work and has made no step for {seconds:.0f} s"
