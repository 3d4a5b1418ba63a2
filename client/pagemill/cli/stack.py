"""What `run` and `serve` share: the stack's specification, its start, and signals."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer

from pagemill.cli.console import complain, err
from pagemill.cli.failures import ExitCode
from pagemill.cli.progress import StartProgress
from pagemill.local.install import install_advice
from pagemill.local.models import DEFAULT_MODEL, resolve_model, served_name
from pagemill.local.spec import StackSpec, missing_packages
from pagemill.local.stack import LocalStack

ModelPath = Annotated[
    str, typer.Option("--model", "-m", help="A GGUF file, a Hugging Face folder, or smollm2.", show_default=True)
]
RedisUrl = Annotated[str | None, typer.Option("--redis-url", help="A Redis of yours.", show_default="an embedded one")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option("--device", help="Where replicas compute.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Same tokens whatever else runs; costs some speed.")
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory", help="Memory of each replica's KV cache, such as 512MiB.", show_default="from what is free"
    ),
]
MaxContext = Annotated[
    int | None, typer.Option("--max-context", help="Most tokens in prompt and output.", show_default="the model's")
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads of each replica.", show_default="the processors, shared out")
]

DEFAULT = DEFAULT_MODEL


def make_spec(model: str, *, redis_url: str | None, **settings: object) -> StackSpec:
    """The specification of a stack, after a look at what is installed. Exits where something is missing."""
    missing = missing_packages(need_redis=redis_url is None)
    if missing:
        complain(f"a local stack needs packages that are not installed: {', '.join(missing)}", install_advice())
        raise typer.Exit(ExitCode.START)
    return StackSpec(
        model=resolve_model(model),
        model_name=served_name(model),
        redis_url=redis_url,
        **settings,  # type: ignore[arg-type]
    )


@contextlib.contextmanager
def running(spec: StackSpec) -> Iterator[LocalStack]:
    """A started stack; ended when left, by whatever: an error, Ctrl-C, SIGTERM or a closed terminal."""
    with terminate_as_interrupt():
        progress = StartProgress(err())
        stack = LocalStack(spec, progress)
        try:
            with progress:
                stack.start()
            yield stack
        finally:
            with err().status("stopping"):
                stack.stop()


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Has SIGTERM and SIGHUP do what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Whoever runs decides what an interrupt does to it. Started in a script's background, Ctrl-C is ignored.
        on_interrupt = signal.getsignal(signal.SIGINT)
        if not callable(on_interrupt):
            raise KeyboardInterrupt
        on_interrupt(number, frame)

    signals = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
