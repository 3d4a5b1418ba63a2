"""Tables of settings: flags of the tiers, variables of make, limits of connections."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from doc_tables.markdown import code, table
from pagemill import channel
from pagemill_common.grpc import options
from pagemill_common.intake.facts import Limits
from pagemill_common.intake.room import CUT_BYTES
from pagemill_common.settings import Settings
from pagemill_replica.settings import ReplicaSettings
from pagemill_router.settings import RouterSettings

MAKEFILE = Path(__file__).parents[2] / "Makefile"

_MAKE_VARIABLES = {
    "PROMPT": ("run", "what is asked; empty: a question of its own"),
    "MODEL": ("run, serve", "a name (`smollm2`), a Hugging Face folder or a GGUF file; empty: `smollm2`"),
    "TRACE": ("run", "`TRACE=1` prints the span tree of the request"),
    "REPLICAS": ("serve", "how many replicas are started"),
    "ROUTERS": ("serve", "how many routers are started"),
    "ARGS": ("run, serve, test", "further arguments: of `pagemill run`, of `pagemill serve`, of pytest"),
    "TEST_WORKERS": ("test", "processes that run tests at the same time"),
    "TORCH_INDEX": ("what installs", "a package index to take torch from, for another build of it"),
    "PYTHON": (
        "what installs",
        "the interpreter that `.venv` is made with; empty: the first of python3, python3.13, ... that is 3.11 or later",
    ),
}


def router_settings() -> str:
    """One row for each flag of a router."""
    return _settings(RouterSettings)


def replica_settings() -> str:
    """One row for each flag of a replica."""
    return _settings(ReplicaSettings)


def make_variables() -> str:
    """One row for each variable of the Makefile; ValueError where one is not described here, or gone."""
    text = MAKEFILE.read_text()
    defaults = dict(re.findall(r"^([A-Z_]+) \?=[ ]*(.*)$", text, re.MULTILINE))
    if "$(PYTHON)" in text:
        defaults.setdefault("PYTHON", "")
    if defaults.keys() != _MAKE_VARIABLES.keys():
        odd = ", ".join(sorted(defaults.keys() ^ _MAKE_VARIABLES.keys()))
        raise ValueError(f"the Makefile and docs/doc_tables/settings.py do not have the same variables: {odd}")
    rows = [
        (code(name), targets, code(defaults[name]) or "empty", text)
        for name, (targets, text) in _MAKE_VARIABLES.items()
    ]
    return table(("variable", "of make ...", "default", "what it does"), rows)


def connection_limits() -> str:
    """What servers and the Python client tell gRPC."""
    client = dict(channel.channel_options(""))
    rows = [
        (
            "least time between a client's pings",
            f"{options.MIN_PING_SECONDS:g} s",
            "a connection that pings more often is closed (`too_many_pings`); pings without calls are allowed",
        ),
        (
            "server's and client's own ping",
            f"{options.KEEPALIVE_SECONDS:g} s / {client['grpc.keepalive_time_ms'] / 1000:g} s",
            "on an idle connection",
        ),
        (
            "wait for the answer to a ping",
            f"{options.KEEPALIVE_TIMEOUT_SECONDS:g} s / {client['grpc.keepalive_timeout_ms'] / 1000:g} s",
            "then the connection ends",
        ),
        (
            "largest message to a router / a replica",
            f"{_mib(options.MAX_REQUEST_BYTES)} / {_mib(options.MAX_MESSAGE_BYTES)}",
            "RESOURCE_EXHAUSTED from gRPC itself, without our details: a retry is pointless",
        ),
        (
            "calls of one connection at the same time",
            f"{options.MAX_STREAMS_PER_CONNECTION}",
            "gRPC's clients hold them back until one ends; what comes all the same is refused with UNAVAILABLE or "
            "RESOURCE_EXHAUSTED, without our details",
        ),
        (
            "calls that have arrived and not been accepted",
            f"{options.MAX_PENDING_CALLS}",
            "CANCELLED from gRPC itself, without our details; the queue limits answer long before",
        ),
        ("largest message that the Python client takes", _mib(channel.MAX_RESPONSE_BYTES), ""),
        (
            "age of a connection to a router",
            "`--max-connection-age`, spread by 10 %",
            "GOAWAY; its streams may go on for `--max-stream-seconds`. Replicas set none",
        ),
    ]
    return table(("limit", "value", "beyond it"), rows)


_REQUEST_LIMITS = {
    "max_prompt_bytes": "UTF-8 bytes of a text, or of all of a chat's messages and variables",
    "max_prompt_tokens": "token ids of a prompt of ids",
    "max_messages": "messages of a chat",
    "max_role_length": "characters of a role",
    "max_variables_bytes": "UTF-8 bytes of a chat's template variables",
    "max_variables_values": "values in them, nested ones included",
    "max_tokenize_bytes": "UTF-8 bytes that Tokenize takes",
    "max_reply_bytes": "bytes that Tokenize and Detokenize answer",
    "max_stop_strings": "stop strings",
    "max_stop_string_bytes": "UTF-8 bytes of one of them",
    "max_stop_tokens": "stop token ids",
    "max_logit_bias": "entries of logit_bias",
    "max_banned_tokens": "banned token ids",
}


def request_limits() -> str:
    """What a request may hold. KeyError where the code has a limit that this table lacks."""
    rows = []
    for field in dataclasses.fields(Limits):
        value = int(getattr(Limits(), field.name))
        rows.append(
            (_REQUEST_LIMITS[field.name], _mib(value) if "bytes" in field.name and value >= 2**20 else str(value))
        )
    rows.append(("UTF-8 bytes of a text that `truncate_prompt` may cut, where it does not fit", _mib(CUT_BYTES)))
    return table(("most", "value"), rows)


def _settings(settings: type[Settings]) -> str:
    rows = [(code(flag), code(variable), default, text) for flag, variable, default, text in settings.settings_table()]
    return table(("flag", "variable", "default", "what it does"), rows)


def _mib(size: int) -> str:
    return f"{size // 2**20} MiB"
