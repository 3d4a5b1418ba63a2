"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from pagemill.options import GenerateOptions

JSON_KEY = "pagemill.json"

_SAMPLING = "Sampling"
_STOPPING = "Stopping"
_PROMPT = "Prompt and output"
_SWITCHES = "Switches"
"""Pairs of long names, apart from the others: in one table they would leave no room for what the others mean."""
_CALL = "Call"


def _remember_json(context: typer.Context, value: bool) -> bool:
    context.find_root().meta[JSON_KEY] = value
    return value


Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        envvar="PAGEMILL_TARGET",
        help="host:port of a router, or of one replica.",
        rich_help_panel=_CALL,
        show_default="127.0.0.1:8450",
    ),
]
Router = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        envvar="PAGEMILL_TARGET",
        help="host:port of a router.",
        rich_help_panel=_CALL,
        show_default="127.0.0.1:8450",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Write JSON, one object a line.", callback=_remember_json, rich_help_panel=_CALL),
]
ProtoJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Write JSON, one object a line: names as in the protos, durations in seconds.",
        callback=_remember_json,
        rich_help_panel=_CALL,
    ),
]
"""For commands that write messages of the service."""
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", help="Seconds for the whole answer.", rich_help_panel=_CALL, show_default="the server's"),
]
RequestId = Annotated[
    str | None,
    typer.Option("--request-id", help="Your id for this request.", rich_help_panel=_CALL, show_default="drawn"),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Served name or alias.", show_default="the only one", rich_help_panel=_CALL),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        help="Most tokens to generate.",
        rich_help_panel=_STOPPING,
        show_default="what is left of the context",
    ),
]
MinTokens = Annotated[
    int | None,
    typer.Option("--min-tokens", help="No stop before this many tokens.", rich_help_panel=_STOPPING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End the text where this appears. Repeatable.", rich_help_panel=_STOPPING),
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option("--stop-token-id", help="End the text after this token. Repeatable.", rich_help_panel=_STOPPING),
]
IncludeStop = Annotated[
    bool | None,
    typer.Option("--include-stop/--exclude-stop", help="Leave the stop in the text.", rich_help_panel=_SWITCHES),
]
IgnoreEnd = Annotated[
    bool | None,
    typer.Option(
        "--ignore-end-of-text/--honour-end-of-text",
        help="Go on past the end of text.",
        rich_help_panel=_SWITCHES,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", help="0 (greedy) to 100.", rich_help_panel=_SAMPLING, show_default="the model's"),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", help="Keep the k most likely tokens; 0 keeps all.", rich_help_panel=_SAMPLING)
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", help="Keep the smallest set of this probability, above 0 to 1.", rich_help_panel=_SAMPLING),
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", help="Drop tokens below this share of the likeliest, 0 to 1.", rich_help_panel=_SAMPLING),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option("--repetition-penalty", help="Above 0 to 100; 1 is none.", rich_help_panel=_SAMPLING)
]
FrequencyPenalty = Annotated[
    float | None, typer.Option("--frequency-penalty", help="-100 to 100; 0 is none.", rich_help_panel=_SAMPLING)
]
PresencePenalty = Annotated[
    float | None, typer.Option("--presence-penalty", help="-100 to 100; 0 is none.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed of the random bits.", rich_help_panel=_SAMPLING, show_default="drawn")
]
SkipSpecial = Annotated[
    bool | None,
    typer.Option(
        "--skip-special-tokens/--show-special-tokens",
        help="Leave special tokens out.",
        rich_help_panel=_SWITCHES,
    ),
]
AddSpecial = Annotated[
    bool | None,
    typer.Option(
        "--add-special-tokens/--no-special-tokens",
        help="Add the tokenizer's own to a plain prompt.",
        rich_help_panel=_SWITCHES,
    ),
]
TruncatePrompt = Annotated[
    int | None,
    typer.Option(
        "--truncate-prompt", help="Keep only the last N prompt tokens; 0 keeps what fits.", rich_help_panel=_PROMPT
    ),
]
Chat = Annotated[bool, typer.Option("--chat", "-c", help="Ask in the model's chat form.", rich_help_panel=_PROMPT)]
System = Annotated[
    str | None,
    typer.Option("--system", "-s", help="A system message before it.", rich_help_panel=_PROMPT),
]
SystemOfChat = Annotated[
    str | None,
    typer.Option("--system", "-s", help="A system message before it; implies --chat.", rich_help_panel=_PROMPT),
]
"""For commands that have --chat."""
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="How routers choose: round_robin, power_of_two, least_loaded or prefix_affinity.",
        show_default="the router's",
    ),
]


_FLAGS = {
    "stop_token_ids": "--stop-token-id",
    **{
        option: "--" + option.replace("_", "-")
        for option in (
            "model", "request_id", "timeout", "max_tokens", "min_tokens", "stop", "include_stop", "ignore_end_of_text",
            "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
            "seed", "skip_special_tokens", "add_special_tokens", "truncate_prompt",
        )
    },
}  # fmt: skip


def flag_of(option: str) -> str | None:
    """The flag of `pagemill generate` for an option of the library; None where it has none."""
    return _FLAGS.get(option)


def given(**options: Any) -> GenerateOptions:
    """The options that were given on the command line."""
    return cast(GenerateOptions, {key: value for key, value in options.items() if value not in (None, [], ())})


def chat_messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    """A question, after a system message where there is one."""
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": prompt}]
