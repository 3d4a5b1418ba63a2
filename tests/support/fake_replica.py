"""A replica without an engine: real gRPC, a real ledger and real heartbeats; each test scripts what it answers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import generation_pb2_grpc, model_pb2, replica_pb2, replica_pb2_grpc
from pagemill_common import errors
from pagemill_common.capacity import Beat, BeatReply, CapacityPool, HeartbeatLoop
from pagemill_common.grpc.options import ServerOptions
from pagemill_common.grpc.server import GrpcServer

Context = grpc.aio.ServicerContext[Any, Any]
Script = Callable[["FakeReplica", pb.GenerateRequest, Context], AsyncIterator[pb.GenerateResponse]]

BLOCK = 16
VOCABULARY = 256


def bundle() -> model_pb2.TokenizerBundle:
    """A tokenizer of bytes: id = the byte's place in the byte-level alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    return model_pb2.TokenizerBundle(tokenizer_json=tokenizer.to_str().encode(), chat_template=template)


BUNDLE = bundle().SerializeToString()


def started(replica: str, request: pb.GenerateRequest) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        started=pb.Started(
            request_id=request.request_id,
            model=request.model,
            replica=replica,
            prompt_tokens=len(request.token_ids.ids),
            seed=request.sampling.seed,
        )
    )


def delta(position: int, token: int | None = None) -> pb.GenerateResponse:
    """One token whose text is its position, four bytes wide."""
    value = token if token is not None else position % VOCABULARY
    return pb.GenerateResponse(
        delta=pb.Delta(token_ids=[value], text=f"{position:03d} ", position=position, text_offset=4 * position)
    )


def finished(tokens: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        finished=pb.Finished(
            reason=pb.FINISH_REASON_MAX_TOKENS, usage=pb.Usage(prompt_tokens=1, completion_tokens=tokens)
        )
    )


async def answer(
    replica: FakeReplica, request: pb.GenerateRequest, context: Context
) -> AsyncIterator[pb.GenerateResponse]:
    """max_tokens tokens, `replica.pace` seconds apart."""
    yield started(replica.name, request)
    for position in range(request.stop.max_tokens):
        if replica.pace:
            await asyncio.sleep(replica.pace)
        yield delta(position)
    yield finished(request.stop.max_tokens)


def text_of(tokens: int) -> str:
    """What `answer` says in so many tokens."""
    return "".join(f"{position:03d} " for position in range(tokens))


def failing(error: errors.StatusError, after: int | None = None) -> Script:
    """A script that fails before anything, or after so many tokens."""

    async def script(
        replica: FakeReplica, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        if after is not None:
            yield started(replica.name, request)
            for position in range(after):
                yield delta(position)
        raise error

    return script


def silent(after: int | None = None) -> Script:
    """A script that says nothing, or nothing more after so many tokens."""

    async def script(
        replica: FakeReplica, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        if after is not None:
            yield started(replica.name, request)
            for position in range(after):
                yield delta(position)
        await asyncio.Event().wait()
        yield started(replica.name, request)

    return script


@dataclass
class Seen:
    """A request as it came."""

    request: pb.GenerateRequest
    metadata: dict[str, str | bytes]
    outcome: str = "live"


class FakeReplica(generation_pb2_grpc.GenerationServiceServicer, replica_pb2_grpc.ReplicaServiceServicer):
    """Serves while its `async with` block lasts. `scripts` are used up first, one a request; then `script`."""

    def __init__(
        self,
        name: str = "r0",
        *,
        capacity: int = 1000,
        pool: CapacityPool | None = None,
        pace: float = 0.0,
        model: model_pb2.Model | None = None,
        script: Script = answer,
        listen: str = "127.0.0.1:0",
        trust_ledger: bool = True,
    ) -> None:
        self.name = name
        self.epoch = secrets.token_hex(4)
        self.capacity = capacity
        self.pace = pace
        self.script = script
        self.scripts: deque[Script] = deque()
        self.seen: list[Seen] = []
        self.most_committed = 0
        self.draining = False
        self.blind = False
        """It notes no reservation: to Redis and routers it is as if the request had never reached it."""
        self.mute = False
        """It says nothing more on its state streams, which stay open."""
        self.ready = True
        self.stored: list[bytes] = []
        self.model = model or model_pb2.Model(
            name="tiny",
            aliases=["small"],
            family="llama",
            max_context_tokens=8192,
            vocabulary_size=VOCABULARY,
            block_size=BLOCK,
            has_chat_template=True,
            model_id="a" * 64,
            max_request_tokens=min(8192, capacity * BLOCK),
        )
        self.tokenizer_calls: Counter[str] = Counter()
        self._trust_ledger = trust_ledger
        self._ledger: dict[str, int] = {}
        self._seen_ids: dict[str, None] = {}
        self._watchers: dict[asyncio.Queue[list[str]], str] = {}
        self._listen = listen
        self._pool = pool
        self._beats: HeartbeatLoop | None = None
        self.address = ""
        self._server: GrpcServer

    @property
    def committed(self) -> int:
        return sum(self._ledger.values())

    @property
    def live(self) -> int:
        return sum(one.outcome == "live" for one in self.seen)

    async def __aenter__(self) -> FakeReplica:
        services = ["pagemill.v1.GenerationService", "pagemill.v1.ReplicaService"]
        self._server = GrpcServer(ServerOptions(self._listen), services)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, self._server.server)
        replica_pb2_grpc.add_ReplicaServiceServicer_to_server(self, self._server.server)
        self.address = await self._server.start()
        if self._pool is not None:
            self._beats = HeartbeatLoop(self._pool, self._beat, interval=0.1, on_reply=self._heard)
            self._beats.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends at once: streams break, the port closes."""
        if self._beats is not None:
            beats, self._beats = self._beats, None
            await beats.stop()
        await self._server.stop(0)

    async def silence(self) -> None:
        """Stops the heartbeats; all else goes on."""
        assert self._beats is not None
        self._beats._stopping = True
        self._beats.nudge()

    def tell(self) -> None:
        """State has changed: watchers hear of it."""
        for queue in self._watchers:
            queue.put_nowait([])
        if self._beats is not None:
            self._beats.nudge()

    # What routers call.

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        seen = Seen(request, dict(context.invocation_metadata() or ()))
        self.seen.append(seen)
        placement = request.placement
        key = f"{placement.call_id}/{placement.attempt}"
        try:
            self._accept(key, request)
            script = self.scripts.popleft() if self.scripts else self.script
            async for message in script(self, request, context):
                yield message
            seen.outcome = "done"
        except errors.StatusError:
            seen.outcome = "failed"
            raise
        except (asyncio.CancelledError, GeneratorExit):
            seen.outcome = "cancelled"
            raise
        finally:
            self._ledger.pop(key, None)
            self._see(placement.reservation_id)

    def _accept(self, key: str, request: pb.GenerateRequest) -> None:
        placement = request.placement
        self._see(placement.reservation_id)
        if self.draining:
            raise errors.draining(None)
        if placement.epoch and placement.epoch != self.epoch:
            raise errors.wrong_epoch(placement.epoch, self.epoch)
        if self._trust_ledger and self.committed + placement.need_blocks > self.capacity:
            raise errors.replica_full(0.1, "no room")
        self._ledger[key] = placement.need_blocks
        self.most_committed = max(self.most_committed, self.committed)

    def _see(self, reservation_id: str) -> None:
        if reservation_id and not self.blind:
            self._seen_ids[reservation_id] = None
            for queue in self._watchers:
                queue.put_nowait([reservation_id])

    async def WatchState(
        self, request: replica_pb2.WatchStateRequest, context: Context
    ) -> AsyncIterator[replica_pb2.WatchStateResponse]:
        queue: asyncio.Queue[list[str]] = asyncio.Queue()
        self._watchers[queue] = request.router
        try:
            events = replica_pb2.KvEvents(snapshot=True, stored=self.stored)
            yield replica_pb2.WatchStateResponse(state=self.state(), kv_events=events)
            while True:
                ids: list[str] = []
                try:
                    async with asyncio.timeout(0.5):
                        ids += await queue.get()
                except TimeoutError:
                    pass
                while not queue.empty():
                    ids += queue.get_nowait()
                if self.mute:
                    continue
                yield replica_pb2.WatchStateResponse(state=self.state(), seen_reservation_ids=ids)
        finally:
            del self._watchers[queue]

    async def GetTokenizer(
        self, request: replica_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[replica_pb2.GetTokenizerResponse]:
        digest = hashlib.sha256(BUNDLE).digest()
        header = replica_pb2.TokenizerHeader(digest=digest, size=len(BUNDLE))
        yield replica_pb2.GetTokenizerResponse(header=header)
        self.tokenizer_calls["header"] += 1
        if request.known_digest != digest:
            self.tokenizer_calls["whole"] += 1
            for start in range(0, len(BUNDLE), 1000):
                yield replica_pb2.GetTokenizerResponse(chunk=BUNDLE[start : start + 1000])

    def state(self) -> replica_pb2.ReplicaState:
        return replica_pb2.ReplicaState(
            name=self.name,
            epoch=self.epoch,
            model=self.model,
            capacity_blocks=self.capacity,
            used_blocks=self.committed,
            committed_blocks=self.committed,
            running=len(self._ledger),
            draining=self.draining,
            ready=self.ready,
            watching_routers=len(set(self._watchers.values())),
        )

    def _beat(self) -> Beat:
        return Beat(
            name=self.name,
            epoch=self.epoch,
            address=self.address,
            model=self.model.name,
            model_id=self.model.model_id,
            block_size=self.model.block_size,
            capacity=self.capacity,
            used=self.committed,
            committed=self.committed,
            running=len(self._ledger),
            draining=self.draining,
            seen=tuple(self._seen_ids)[:512],
        )

    def _heard(self, beat: Beat, reply: BeatReply) -> None:
        if reply.acknowledged:
            for reservation_id in beat.seen:
                self._seen_ids.pop(reservation_id, None)


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Returns when the condition holds; fails the test when it does not in time."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.01)
