"""The typed client of the pool: one Redis, one set of connections, no call without an end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from pagemill_common import logs
from pagemill_common.capacity import wire
from pagemill_common.capacity.clock import RedisClock
from pagemill_common.capacity.errors import CapacityUnavailable, UnavailableReason, unavailable
from pagemill_common.capacity.keys import Keys, check_replica_key
from pagemill_common.capacity.scripts import Script, ScriptSet
from pagemill_common.capacity.settings import CapacitySettings
from pagemill_common.capacity.types import (
    MAX_BATCH,
    Beat,
    BeatReply,
    BeatStatus,
    Member,
    Refused,
    RefusedReason,
    Reserve,
    ReserveReply,
)

_log = logs.get("pagemill.capacity")

T = TypeVar("T")


class CapacityPool:
    """What the replicas of one pool can take, in Redis. Use it as an async context manager or call `aclose`.

    Every method raises CapacityUnavailable when Redis is gone in any way, within its time limit. Every call may be
    sent twice without harm. A call that ends in CapacityUnavailable may still have been carried out.
    """

    def __init__(
        self,
        redis_url: str,
        pool: str,
        *,
        settings: CapacitySettings | None = None,
        scripts: ScriptSet | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or CapacitySettings()
        self.keys = Keys(pool)
        self._scripts = scripts or ScriptSet()
        self._clock = RedisClock(monotonic)
        connections = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=self.settings.connections,
            timeout=self.settings.command_timeout,
            socket_timeout=self.settings.command_timeout,
            socket_connect_timeout=self.settings.command_timeout,
            # A connection that the server has closed fails at its first use: once more at once, on another one.
            retry=Retry(NoBackoff(), 1),
            protocol=2,
            driver_info=None,
            client_name=f"pagemill-{pool}",
        )
        self._redis: Redis = Redis.from_pool(connections)
        self._calls: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def address(self) -> str:
        """host:port, or the path of a socket: where Redis is, without the secrets of its URL."""
        where = self._redis.connection_pool.connection_kwargs
        return str(where["path"]) if "path" in where else f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"

    async def aclose(self) -> None:
        """Closes the connections, once the calls that were given up on have ended."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=self.settings.command_timeout)
        await self._redis.aclose()

    async def heartbeat(self, beat: Beat) -> BeatReply:
        """Writes what a replica has. `beat.seq` must be above that of every earlier beat of the epoch."""
        if beat.seq < 1:
            raise ValueError("seq must be at least 1")
        if len(beat.seen) > self.settings.max_seen:
            raise ValueError(f"seen must hold at most {self.settings.max_seen} ids")
        return await self._within(self.settings.command_timeout, self._heartbeat(beat))

    async def _heartbeat(self, beat: Beat) -> BeatReply:
        for attempt in range(2):
            keys, args = wire.encode_beat(self.keys, beat, self.settings, self._not_after(self.settings.record_ttl / 2))
            answer = await self._run(self._scripts.heartbeat, keys, args)
            reply = wire.decode_beat(answer, beat)
            # Late by a clock that has moved: the reply brought the time, and nothing was written.
            if reply.status is not BeatStatus.LATE or attempt:
                return reply
        raise AssertionError("unreachable")

    async def reserve(self, requests: Sequence[Reserve], *, limit: float | None = None) -> list[ReserveReply]:
        """Reserves room for each request on one of its candidates; replies in the order of the requests.

        `limit` in seconds is the settings' reserve deadline unless given. At most MAX_BATCH requests.
        """
        if not requests:
            return []
        if len(requests) > MAX_BATCH:
            raise ValueError(f"at most {MAX_BATCH} requests in one call")
        if len({r.id for r in requests}) != len(requests):
            raise ValueError("an id appears twice in one call")
        seconds = self.settings.reserve_deadline if limit is None else limit
        return await self._within(seconds, self._reserve(requests, seconds))

    async def _reserve(self, requests: Sequence[Reserve], limit: float) -> list[ReserveReply]:
        if self._clock.now_ms() is None:
            await self._read_time()
        replies: list[ReserveReply] = []
        for _ in range(2):
            # Twice the limit: the estimate runs behind by the way back of the reply it comes from. Never beyond ttl: a
            # copy that arrives after its reservation has expired must not be granted anew.
            keys, args = wire.encode_reserve(
                self.keys, requests, self.settings, self._not_after(min(2 * limit, self.settings.ttl))
            )
            answer = await self._run(self._scripts.reserve, keys, args)
            replies = wire.decode_reserve(answer, requests)
            if not any(isinstance(r, Refused) and r.reason is RefusedReason.LATE for r in replies):
                break
        return replies

    async def release(self, reservation_id: str, *replicas: str) -> bool:
        """Gives up a reservation that was sent to no replica; its id is spent from then on. Best effort.

        `replicas` are the keys of those where it may stand. Returns whether it stood on one of them.
        """
        keys = [self.keys.reservation(reservation_id), *(self.keys.pending(check_replica_key(r)) for r in replicas)]
        args: wire.Args = [reservation_id, wire.milliseconds(self.settings.tombstone_ttl)]
        removed = await self._within(self.settings.command_timeout, self._evalsha(self._scripts.release, keys, args))
        return bool(removed)

    async def members(self, *, limit: float | None = None) -> list[Member]:
        """The replicas with a record, in the order of their keys; at one address only the one that came last.

        `limit` in seconds is the settings' command timeout unless given.
        """
        return await self._within(self.settings.command_timeout if limit is None else limit, self._members())

    async def _members(self) -> list[Member]:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self.keys.roster, 0, -1)
            (seconds, micros), roster = await pipe.execute()
        now_ms = seconds * 1000 + micros // 1000
        self._clock.update(now_ms)
        if not roster:
            return []
        replicas = sorted(key.decode(errors="replace") for key in roster)
        async with self._redis.pipeline(transaction=False) as pipe:
            for replica in replicas:
                pipe.hgetall(self.keys.record(replica))
                pipe.hvals(self.keys.pending(replica))
            answers = await pipe.execute()
        return wire.decode_members(replicas, answers, now_ms, self.settings)

    async def ping(self) -> None:
        """Raises CapacityUnavailable unless Redis answers."""
        await self._within(self.settings.command_timeout, self._read_time())

    async def _read_time(self) -> None:
        seconds, micros = await self._redis.time()
        self._clock.update(seconds * 1000 + micros // 1000)

    def _not_after(self, seconds: float) -> int:
        now = self._clock.now_ms()
        return 0 if now is None else int(now + min(seconds, self.settings.max_ttl / 2) * 1000)

    async def _run(self, script: Script, keys: list[str], args: wire.Args) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self._evalsha(script, keys, args))
        self._clock.update(answer["now"])
        return answer

    async def _evalsha(self, script: Script, keys: list[str], args: Sequence[str | int | float]) -> Any:
        try:
            return await self._redis.evalsha(script.sha, len(keys), *keys, *args)
        except NoScriptError:
            # A restarted server, or one whose scripts were flushed: one more round trip.
            return await self._redis.eval(script.text, len(keys), *keys, *args)

    async def _within(self, seconds: float, call: Coroutine[Any, Any, T]) -> T:
        """What the call gives; CapacityUnavailable where it fails or takes longer.

        It runs in a task of its own: redis-py awaits through asyncio.wait_for, which in Python 3.11 can swallow a
        cancellation, so that neither a timeout nor a cancelled caller would be sure to end. One that is given up on
        ends by itself, within the timeouts of its socket.
        """
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            raise CapacityUnavailable(UnavailableReason.TIMEOUT, f"no answer within {seconds:g} s")
        try:
            return task.result()
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        except Exception as error:
            # An answer that makes no sense is no answer; who gave it is for the log to tell.
            _log.error("redis gave an answer that cannot be read", exc_info=error)
            text = f"the answer cannot be read: {type(error).__name__}: {error}"
            raise CapacityUnavailable(UnavailableReason.OTHER, text) from error

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Nobody may be left to ask for it.
            task.exception()
