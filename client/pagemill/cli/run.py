"""`pagemill run`: one question to a stack that lives only for it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pagemill.aio import AsyncClient
from pagemill.cli import options as o
from pagemill.cli import stack as s
from pagemill.cli.ask import Pace
from pagemill.cli.calls import call
from pagemill.cli.console import complain, err, note, out
from pagemill.cli.failures import ExitCode
from pagemill.cli.temperature import Temperature, for_talking
from pagemill.cli.wrapping import show_wrapped
from pagemill.local.spans import processes, reserve_replies, tree_lines
from pagemill.local.spec import StackSpec
from pagemill.local.stack import LocalStack
from pagemill.options import GenerateOptions

if TYPE_CHECKING:
    from pagemill.local.collector import Collector

DEFAULT_PROMPT = "Why is the sky blue?"

_SERVICES = ("pagemill-client", "pagemill-router", "pagemill-replica", "pagemill-engine")


def run(
    prompt: Annotated[str, typer.Argument(help="The question.")] = DEFAULT_PROMPT,
    model: s.ModelPath = s.DEFAULT,
    system: o.System = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")] = 200,
    temperature: Temperature = None,
    seed: o.Seed = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=64, help="How many replicas.")] = 1,
    redis_url: s.RedisUrl = None,
    dtype: s.Dtype = "auto",
    device: s.Device = "cpu",
    deterministic: s.Deterministic = False,
    kv_memory: s.KvMemory = None,
    threads: s.Threads = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print the spans of all processes that took part.")] = False,
) -> None:
    """Start a stack, ask one question in the model's chat form, stream the answer, stop everything."""
    settings = {
        "replicas": replicas,
        "dtype": dtype,
        "device": device,
        "deterministic": deterministic,
        "kv_memory": kv_memory,
        "threads": threads,
    }
    asked = o.given(max_tokens=max_tokens, temperature=temperature, seed=seed)
    messages = o.chat_messages(prompt, system)

    def ask(stack: LocalStack) -> None:
        err().print(f"[bold]{escape(prompt)}[/bold]", soft_wrap=True)
        note(call(stack.router_addresses[0], lambda client: _answer(client, messages, asked)))

    try:
        if trace:
            _run_traced(ask, model, redis_url, settings)
        else:
            with s.running(s.make_spec(model, redis_url=redis_url, **settings)) as stack:
                ask(stack)
    except KeyboardInterrupt:
        note("stopped.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _run_traced(
    ask: Callable[[LocalStack], None], model: str, redis_url: str | None, settings: Mapping[str, object]
) -> None:
    collector_module = importlib.import_module("pagemill.local.collector")
    with collector_module.Collector() as collector:
        importlib.import_module("pagemill.local.tracing").trace_this_process(collector)
        spec = s.make_spec(model, redis_url=redis_url, otlp_endpoint=collector.endpoint, **settings)
        with s.running(spec) as stack:
            ask(stack)
        # The tiers have sent their last spans before they ended.
        _print_trace(collector, spec)


async def _answer(client: AsyncClient, messages: list[dict[str, str]], asked: GenerateOptions) -> str:
    asked = for_talking(asked, await client.model())
    pace = Pace(time.monotonic)
    async with client.generate(messages=messages, **asked) as stream:
        await show_wrapped(stream, pace, as_json=False)
    return pace.summary(stream)


def _print_trace(collector: Collector, spec: StackSpec) -> None:
    spans = [span for span in collector.spans if span.trace_id in _client_traces(collector)]
    console = out()
    console.print()
    for line in tree_lines(spans, console.width if console.is_terminal else None):
        console.print(escape(line), soft_wrap=True)
    for reply in reserve_replies(spans):
        console.print(f"reserve script's reply: {escape(reply)}", soft_wrap=not console.is_terminal)
    missing = set(_SERVICES) - {service for service, _ in processes(spans)}
    if missing:
        complain(f"no spans came from {', '.join(sorted(missing))}")
        raise typer.Exit(ExitCode.FAILED)


def _client_traces(collector: Collector) -> set[str]:
    return {span.trace_id for span in collector.spans if span.service == "pagemill-client"}
