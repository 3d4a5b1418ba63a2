"""From a caller's request to a job: checks, the model's tokenizer in a thread, block hashes, deadline."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import internal_pb2, model_pb2
from pagemill_common import errors
from pagemill_common import intake as common
from pagemill_common.capacity.need import ExpectedOutput, FullMaxTokens, RunningQuantile
from pagemill_router.fleet.fleet import Fleet
from pagemill_router.fleet.models import ModelBook, ServedModel
from pagemill_router.placement.job import Job
from pagemill_router.policies.base import blocks_for
from pagemill_router.pulse import Pulse
from pagemill_router.settings import RouterSettings

T = TypeVar("T")

BUSY_RETRY_SECONDS = 0.5


@dataclass(slots=True)
class Known:
    """What is known of a request that may yet be refused."""

    model: str = ""
    prompt_tokens: int = 0

    def count_prompt(self, tokens: int) -> None:
        """The prompt has been tokenised; whether it fits is another matter. Called from a thread."""
        self.prompt_tokens = tokens


@dataclass(frozen=True, slots=True)
class _Read:
    """What the thread brings back."""

    prepared: common.Prepared
    hashes: list[bytes]
    forwarded: pb.GenerateRequest


class Intake:
    """Accepts requests for the models of a book."""

    def __init__(
        self,
        book: ModelBook,
        fleet: Fleet,
        executor: Executor,
        settings: RouterSettings,
        clock: Callable[[], float],
        limits: common.Limits | None = None,
    ) -> None:
        self.book = book
        self._threads = common.Offload(executor, settings.tokenizer_threads)
        self._clock = clock
        self._limits = limits or common.Limits()
        self._default_timeout = settings.default_timeout
        self._longest = settings.max_stream_seconds
        self._grace = settings.no_replica_grace
        self._most_reading = max(64, settings.queue_limit)
        self._accepted = 0
        full = settings.expected_output == "full"
        self._expected: ExpectedOutput = FullMaxTokens() if full else RunningQuantile(settings.output_quantile)
        self._changes = Pulse()
        fleet.on_change(lambda roomier: self._changes.fire())

    async def accept(
        self,
        request: pb.GenerateRequest,
        arrived: float,
        time_remaining: float | None,
        request_id: str = "",
        known: Known | None = None,
    ) -> Job:
        """The job of a request that arrived at `arrived`, its gRPC deadline `time_remaining` seconds away, if any.

        `known` takes what is found out on the way. Raises the StatusError that the caller gets. Nothing of a wrong
        request reaches anything but this method.
        """
        known = known or Known()
        request.ClearField("placement")
        # The size of a request with millions of entries takes long to find.
        long = not common.crowded(request, self._limits) and _is_long(request)
        if long:
            await self._in_thread(lambda: common.check_fields(request, self._limits), long)
        else:
            common.check_fields(request, self._limits)
        deadline = self._deadline(request, arrived, time_remaining)
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                served = await self.resolve(request.model)
                known.model = served.model.name
                request.request_id = request_id or request.request_id or common.new_request_id(os.urandom)
                request.model = served.model.name
                read = await self._in_thread(lambda: _read(request, served, facts_of(served), known), long)
        except TimeoutError:
            raise errors.deadline("queue") from None
        return self._job(request, served, read, arrived, deadline)

    async def resolve(self, name: str) -> ServedModel:
        """The model of a name or alias; an empty name is the only one.

        While none is known at all it waits a little for a replica, then raises UNAVAILABLE: with nobody to ask, a name
        cannot be called wrong.
        """
        until = self._clock() + self._grace
        while not (meant := self.book.meant_by(name)):
            try:
                async with asyncio.timeout(max(0.0, until - self._clock())):
                    await self._changes.wait()
            except TimeoutError:
                raise errors.no_replica(1.0, "no replica has been ready yet") from None
        named = common.resolve_model(name, [served.model for served in meant])
        return next(served for served in meant if served.model is named)

    async def tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Ids and pieces, as Generate would see them."""
        served = await self.resolve(request.model)
        return await self._in_thread(
            lambda: common.tokenize(request, served.tokenizer, facts_of(served), self._limits),
            _is_long(request),
        )

    async def detokenize(self, request: pb.DetokenizeRequest) -> pb.DetokenizeResponse:
        """The text of ids."""
        served = await self.resolve(request.model)
        return await self._in_thread(
            lambda: common.detokenize(request, served.tokenizer, facts_of(served), self._limits),
            _is_long(request),
        )

    def observe(self, job: Job, tokens_per_choice: list[int]) -> None:
        """Answers of these lengths have ended by themselves."""
        for tokens in tokens_per_choice:
            self._expected.observe(job.model, "", tokens)

    def _deadline(self, request: pb.GenerateRequest, arrived: float, time_remaining: float | None) -> float:
        asked = self._default_timeout
        if request.HasField("timeout"):
            asked = request.timeout.seconds + request.timeout.nanos / 1e9
        deadline = arrived + min(asked, self._longest)
        return deadline if time_remaining is None else min(deadline, self._clock() + time_remaining)

    def _job(
        self, request: pb.GenerateRequest, served: ServedModel, read: _Read, arrived: float, deadline: float
    ) -> Job:
        prepared, forwarded = read.prepared, read.forwarded
        prompt = len(prepared.prompt_ids)
        expected = self._expected.expect(served.model.name, "", prepared.max_tokens)

        def forward(placement: internal_pb2.Placement, seconds_left: float) -> bytes:
            forwarded.placement.CopyFrom(placement)
            forwarded.timeout.FromNanoseconds(max(1, round(seconds_left * 1e9)))
            return forwarded.SerializeToString()

        self._accepted += 1
        return Job(
            request_id=request.request_id,
            call_id=secrets.token_hex(12),
            model=served.model.name,
            prompt_tokens=prompt,
            expected_output=expected,
            total_blocks=blocks_for(prompt + expected, served.model.block_size),
            total_tokens=prepared.total_tokens,
            hashes=read.hashes,
            ordinal=self._accepted - 1,
            arrived=arrived,
            deadline=deadline,
            forward=forward,
            with_token_ids=prepared.want_token_ids,
        )

    async def _in_thread(self, work: Callable[[], T], long: bool) -> T:
        """Runs CPU work off the loop; QUEUE_FULL where too much of it waits already."""
        if self._threads.pending >= self._most_reading:
            raise errors.queue_full(BUSY_RETRY_SECONDS, f"{self._threads.pending} requests wait to be tokenised")
        return await self._threads.run(work, long=long)


def facts_of(served: ServedModel) -> common.ModelFacts:
    """What requests for the model are checked against: the largest that any of its replicas can hold."""
    model = model_pb2.Model()
    model.CopyFrom(served.model)
    model.max_request_tokens = served.max_request_tokens
    return common.ModelFacts.from_model(model, served.tokenizer.end_of_text_ids)


def _is_long(request: pb.GenerateRequest | pb.TokenizeRequest | pb.DetokenizeRequest) -> bool:
    """Even the checks of its fields leave the event loop then, and take turns with others as long."""
    return request.ByteSize() >= common.LONG_BYTES


def _read(request: pb.GenerateRequest, served: ServedModel, facts: common.ModelFacts, known: Known) -> _Read:
    """Runs in a thread."""
    prepared = common.prepare(request, served.tokenizer, facts, known.count_prompt)
    seed = prepared.sampling.seed if prepared.sampling.seed is not None else secrets.randbits(64)
    forwarded = common.to_forwarded(request, prepared, seed, internal_pb2.Placement())
    # The relay needs the ids to tell overlap from gap, and strips them where the caller wants none.
    forwarded.output.token_ids = True
    return _Read(prepared, served.hasher.chain(prepared.prompt_ids), forwarded)
