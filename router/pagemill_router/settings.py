"""The router's settings: each has one name, one default and one place, this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from pagemill_common.setting_values import Address, AddressList, Duration, RedisUrl
from pagemill_common.settings import Contradiction, TierSettings, default_name
from pagemill_router.policies.registry import DEFAULT_POLICY, POLICIES


def _check_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"{name!r} is not a policy; known: {', '.join(sorted(POLICIES))}")
    return name


class RouterSettings(TierSettings):
    """Flags of `pagemill router` and PAGEMILL_ROUTER_* variables."""

    model_config = SettingsConfigDict(env_prefix="PAGEMILL_ROUTER_")
    program = "pagemill router"
    summary = "Balances Generate calls over the replicas of a pool."

    listen: Address = Field("127.0.0.1:8450", description="Address to serve on; port 0 takes a free one.")
    name: str = Field(
        default_factory=default_name,
        min_length=1,
        max_length=128,
        description="This router's name, one for each process; by default host and process id.",
    )
    pool: str = Field(
        "default", pattern=r"[A-Za-z0-9._-]{1,64}", description="The pool of replicas; one Redis can hold several."
    )
    redis_url: RedisUrl | None = Field(
        None, description="Redis that holds what replicas can take, such as redis://localhost:6379/0; none: local mode."
    )
    replicas: AddressList = Field((), description="Replicas to use beside those found in Redis.")
    policy: Annotated[str, AfterValidator(_check_policy)] = Field(
        DEFAULT_POLICY, description=f"How replicas are ranked: {', '.join(sorted(POLICIES))}."
    )
    default_timeout: Duration = Field(300.0, gt=0, description="Time for a call that names none.")
    max_stream_seconds: Duration = Field(3600.0, gt=0, description="The longest time that any call may take.")
    queue_limit: int = Field(1024, ge=0, description="Requests that may wait for room; more are refused.")
    no_replica_grace: Duration = Field(
        2.0, ge=0, description="How long a call waits for a ready replica to appear before it gets UNAVAILABLE."
    )
    max_attempts: int = Field(
        3, ge=1, le=16, description="Replicas that a call is sent to before its first token, failures counted."
    )
    reserve_timeout: Duration = Field(
        0.25, gt=0, description="Time for one reserve in Redis before local mode takes over."
    )
    discovery_interval: Duration = Field(1.0, gt=0, description="How often Redis is asked for replicas.")
    watch_timeout: Duration = Field(
        4.0, ge=1.5, description="A replica that says nothing for this long gets no traffic until it speaks again."
    )
    expected_output: Literal["quantile", "full"] = Field(
        "quantile",
        description="Output that admission counts on: a running quantile of the model's answers, or all of max_tokens.",
    )
    output_quantile: float = Field(0.9, gt=0, le=1, description="The quantile, for --expected-output quantile.")
    tokenizer_threads: int = Field(
        2, ge=1, le=64, description="Threads that render templates and tokenise, off the event loop."
    )
    max_known_blocks: int = Field(
        262_144, ge=0, description="Hashes of cached blocks to remember for each replica; older ones are forgotten."
    )
    max_connection_age: Duration = Field(
        1800.0, gt=0, description="Age at which a caller's connection is asked to move to another router."
    )
    drain_settle: Duration = Field(
        3.0, ge=0, description="After SIGTERM, how long new calls are still taken while load balancers notice."
    )
    drain_grace: Duration = Field(
        60.0, ge=0, description="After that, how long streams may go on before they are closed."
    )

    def contradictions(self) -> Iterable[Contradiction]:
        """What is wrong between settings."""
        if not self.replicas and self.redis_url is None:
            yield Contradiction("replicas", "without --redis-url the replicas must be named", ("redis_url",))
        if self.default_timeout > self.max_stream_seconds:
            yield Contradiction("default_timeout", "longer than --max-stream-seconds", ("max_stream_seconds",))
