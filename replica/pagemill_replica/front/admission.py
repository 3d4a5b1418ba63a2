"""From a request as it arrived to one that the engine has.

    gate -> fields -> prepare, replay (thread) -> gate, epoch, time, name, ledger, engine: one turn of the loop

A reservation counts as seen whatever comes of it, so that Redis never keeps charging for a request that was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from pagemill.v1 import generation_pb2
from pagemill_common import errors, telemetry
from pagemill_common.capacity.need import need_blocks
from pagemill_common.intake import Prepared, new_request_id
from pagemill_common.telemetry import names
from pagemill_replica.front.arrival import Arrival, time_limit
from pagemill_replica.front.gate import Gate
from pagemill_replica.front.link import Charge, EngineLink
from pagemill_replica.front.live import LiveRequest
from pagemill_replica.front.models import ModelShelf
from pagemill_replica.front.output import OutputBuffer
from pagemill_replica.front.record import RequestRecord
from pagemill_replica.front.registry import CallName, Registry
from pagemill_replica.front.state import ReplicaView
from pagemill_replica.front.submission import OutputText, Replay, submission

MAX_ID = 128
"""Characters of an id that reach the log."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the front. Seconds and bytes."""

    default_timeout: float
    max_stream_seconds: float
    max_unread: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that the engine has, or that its replayed output has already ended."""

    live: LiveRequest
    model: str
    prompt_tokens: int
    seed: int
    with_ids: bool
    deadline: float
    """Monotonic seconds."""
    replay: Replay | None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, at the first attempt where there were several."""
        return self.live.cached_tokens if self.replay is None else self.replay.cached_tokens


class Admission:
    """Owns the names of live requests and the way into the engine."""

    def __init__(
        self,
        view: ReplicaView,
        gate: Gate,
        models: ModelShelf,
        limits: Limits,
        *,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        """`rng` draws request ids and seeds."""
        self._view = view
        self._gate = gate
        self._models = models
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._registry: Registry[LiveRequest] = Registry()
        self._keys = count(1)

    async def accept(
        self, request: generation_pb2.GenerateRequest, arrived: Arrival, record: RequestRecord
    ) -> Accepted:
        """Validates, prepares and admits. Raises the status of whatever is wrong; nothing is charged then."""
        self._note(request, record)
        try:
            self._gate.pass_through()
            facts = self._models.facts(request.model)
            record.model = facts.name
            self._models.check(request, facts)
            limit = time_limit(
                request, arrived, default=self._limits.default_timeout, longest=self._limits.max_stream_seconds
            )
            prepared = await self._models.prepare(request, facts, record.count_prompt)
            text = await self._models.text_of(prepared, Replay.of(request.placement))
            link = self._gate.pass_through()
            return self._admit(link, request, arrived, record, prepared, text, arrived.at + limit)
        except BaseException:
            # A caller that leaves meanwhile counts too: nobody else would ever tell Redis.
            if self._view.link is not None:
                self._view.link.ledger.refuse(request.placement.reservation_id)
            raise

    def leave(self, accepted: Accepted) -> None:
        """The call is over: its name is free, and the engine stops unless it has already."""
        live = accepted.live
        self._registry.release(live)
        live.output.discard()
        live.leave()

    def _note(self, request: generation_pb2.GenerateRequest, record: RequestRecord) -> None:
        placement = request.placement
        # Not checked yet: what is too long for an id must not fill the log.
        record.request_id = request.request_id[:MAX_ID] or new_request_id(self._random_bytes)
        record.call_id, record.attempt = placement.call_id[:MAX_ID], max(1, placement.attempt)
        record.router = placement.router[:MAX_ID]
        if request.WhichOneof("input") == "chat":
            record.operation = names.OPERATION_CHAT

    def _admit(
        self,
        link: EngineLink,
        request: generation_pb2.GenerateRequest,
        arrived: Arrival,
        record: RequestRecord,
        prepared: Prepared,
        text: OutputText,
        deadline: float,
    ) -> Accepted:
        """One turn of the loop, without an await: what is checked here still holds when the engine is told."""
        placement = request.placement
        if placement.epoch and placement.epoch != self._view.epoch:
            raise errors.wrong_epoch(placement.epoch, self._view.epoch)
        time_left = deadline - self._clock()
        if time_left <= 0:
            raise errors.deadline("queue")
        name = CallName(record.request_id, placement.call_id, record.attempt, replaces=arrived.repeated)
        self._registry.check(name)
        key = next(self._keys)
        replay = text.replay
        seed = self._seed(prepared, replay)
        live = self._live(link, name, key, text)
        if live.finish is None:
            message = submission(
                prepared,
                key=key,
                seed=seed,
                replay=replay,
                salt=placement.kv_salt,
                time_left=time_left,
                traceparent=telemetry.traceparent(record.span),
            )
            need = placement.need_blocks or need_blocks(len(prepared.prompt_ids), prepared.max_tokens, link.block_size)
            call_id = placement.call_id or f"direct:{key}"
            link.admit(live, message, Charge(call_id, name.attempt, need, placement.reservation_id))
        else:
            # The delivered tokens end in a stop string already: there is nothing to compute.
            link.ledger.refuse(placement.reservation_id)
        self._registry.claim(live)
        return Accepted(
            live=live,
            model=record.model,
            prompt_tokens=len(prepared.prompt_ids),
            seed=seed,
            with_ids=prepared.want_token_ids,
            deadline=deadline,
            replay=replay,
        )

    def _live(self, link: EngineLink, name: CallName, key: int, text: OutputText) -> LiveRequest:
        replay = text.replay
        position, offset = (0, 0) if replay is None else (len(replay.token_ids), replay.text_bytes)
        live = LiveRequest(
            name,
            key,
            detokeniser=text.detokeniser,
            output=OutputBuffer(self._limits.max_unread, position=position, text_offset=offset),
            output_limit=self._limits.max_unread,
            replayed_tokens=position,
            abort=link.abort,
            clock=self._clock,
        )
        if text.rest is not None:
            live.resume(text.rest)
        return live

    def _seed(self, prepared: Prepared, replay: Replay | None) -> int:
        if replay is not None:
            return replay.seed
        return self._rng.getrandbits(64) if prepared.sampling.seed is None else prepared.sampling.seed

    def _random_bytes(self, count: int) -> bytes:
        return self._rng.getrandbits(8 * count).to_bytes(count, "big")
