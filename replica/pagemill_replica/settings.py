"""The replica's settings: each has one name, one default and one place, this one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagemill_common.setting_values import Address, CommaList, Duration, ExistingPath, RedisUrl, Size
from pagemill_common.settings import Contradiction, TierSettings, default_name
from pagemill_replica.engine_process.device import TOKEN_BUDGETS

_ANY_HOSTS = ("0.0.0.0", "[::]", "*")


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if root else Path.home() / ".cache") / "pagemill"


class ReplicaSettings(TierSettings):
    """Flags of `pagemill replica` and PAGEMILL_REPLICA_* variables."""

    model_config = SettingsConfigDict(env_prefix="PAGEMILL_REPLICA_")
    program = "pagemill replica"
    summary = "Serves one model: a KV cache, a scheduler and the gRPC front before them."

    model: ExistingPath | None = Field(None, description="The model: a GGUF file or a Hugging Face folder. Required.")
    model_name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._:/-]{0,128}$",
        description="The name that callers use; by default that of the file or folder.",
    )
    model_aliases: CommaList = Field((), description="Other names for the model.")
    listen: Address = Field("127.0.0.1:8460", description="Address to serve on; port 0 takes a free one.")
    advertise: Address | None = Field(
        None, description="Address that routers are told to call; by default the one listened on, or the host's name."
    )
    name: str = Field(
        default_factory=default_name,
        pattern=r"^[A-Za-z0-9._-]{1,128}$",
        description="This replica's name in the pool; by default host and process id.",
    )
    pool: str = Field(
        "default", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="The pool it belongs to; one Redis can hold several."
    )
    redis_url: RedisUrl | None = Field(
        None, description="Redis that learns what this replica can take, such as redis://localhost:6379/0."
    )
    heartbeat_interval: Duration = Field(
        0.2, ge=0.05, le=2.0, description="How often Redis is told what the replica has, spread by a quarter."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Arithmetic of weights and KV cache; auto takes what suits the device."
    )
    device: Literal["cpu"] = Field("cpu", description="Where the model is computed.")
    deterministic: bool = Field(
        False, description="The same tokens whatever else runs, at a cost in speed that the start log names."
    )
    kv_memory: Size | None = Field(
        None, gt=0, description="Memory for the KV cache; by default a share of what is free."
    )
    max_context: int | None = Field(
        None, ge=2, description="Most tokens of prompt and output together; by default what the model was made for."
    )
    block_size: int = Field(16, ge=1, le=256, description="Tokens in a KV block; equal for all replicas of a pool.")
    token_budget: int | None = Field(
        None,
        ge=1,
        description="Most tokens computed in one step: bounds the gap between tokens of a running stream; by default "
        "what suits the device.",
    )
    max_running: int | None = Field(
        None, ge=1, le=4096, description="Most requests that run in one step; by default 256 or the token budget."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads of the engine; by default all cores.")
    default_timeout: Duration = Field(300.0, gt=0, description="Time for a call that names none.")
    max_stream_seconds: Duration = Field(
        600.0, gt=0, description="The longest time that a call may take, and that a drain waits for streams to end."
    )
    max_unread: Size = Field(
        1 << 20, ge=1024, description="Output of one stream that may lie unread before the stream is ended."
    )
    prepare_threads: int = Field(2, ge=1, le=64, description="Threads that validate and tokenise, off the event loop.")
    stall_after: Duration = Field(
        60.0, gt=0, description="Readiness ends when the engine has work and makes no step for this long."
    )
    stall_exit: Duration | None = Field(
        None,
        gt=0,
        description="The process ends with status 1, its streams with UNAVAILABLE, when the engine has work and makes "
        "no step for this long, so that it is started anew; by default three times --stall-after.",
    )
    drain_settle: Duration = Field(
        3.0, ge=0, description="After SIGTERM, how long new calls are still taken while routers notice."
    )
    drain_margin: Duration = Field(
        15.0, ge=0, description="Streams that still run are closed this long before the drain's time is up."
    )
    cache_dir: Path = Field(
        default_factory=_default_cache,
        description="Folder that remembers the hashes of weight files; by default pagemill in the user's cache folder.",
    )
    fake_runner: str = Field(
        "",
        description="For tests: the script of a made-up model that runs in place of the weights.",
        json_schema_extra={"hidden": True},
    )

    def contradictions(self) -> Iterable[Contradiction]:
        """What is wrong between settings."""
        if self.model is None:
            yield Contradiction("model", "name a GGUF file or a Hugging Face folder")
        if self.default_timeout > self.max_stream_seconds:
            yield Contradiction("default_timeout", "longer than --max-stream-seconds", ("max_stream_seconds",))
        if self.stall_exit is not None and self.stall_exit < self.stall_after:
            yield Contradiction("stall_exit", "shorter than --stall-after", ("stall_after",))
        budget = self.token_budget or TOKEN_BUDGETS[self.device]
        if self.max_running is not None and budget < self.max_running:
            text = f"{budget} is below --max-running; every running request takes a token in each step"
            yield Contradiction("token_budget", text, ("max_running", "device"))
        if self.advertise is None and self.listen.rpartition(":")[0] in _ANY_HOSTS and self.redis_url is not None:
            text = "needed beside a --listen on all interfaces, for example the pod's address"
            yield Contradiction("advertise", text, ("listen", "redis_url"))

    @property
    def model_path(self) -> Path:
        """The model, which the check has found to be named."""
        assert self.model is not None
        return self.model

    @property
    def hang_limit(self) -> float:
        """Seconds without a step after which the engine is given up on."""
        return 3 * self.stall_after if self.stall_exit is None else self.stall_exit

    @property
    def served_name(self) -> str:
        """The name that callers use."""
        return self.model_name or self.model_path.resolve().stem

    def advertised(self, port: int) -> str:
        """The address to tell routers, once the port is known."""
        host, _, asked = self.listen.rpartition(":")
        if self.advertise is not None:
            own, _, given = self.advertise.rpartition(":")
            return f"{own}:{port if given == '0' else given}"
        return f"{socket.gethostname() if host in _ANY_HOSTS else host}:{port or asked}"
