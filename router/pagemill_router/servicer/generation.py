"""GenerationService of a router: intake, then the relay; tokenisation from the model's own tokenizer."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import grpc

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import model_pb2
from pagemill_common import errors, telemetry
from pagemill_common.intake import valid_request_id
from pagemill_common.telemetry import names
from pagemill_router.fleet.fleet import Fleet
from pagemill_router.fleet.models import ServedModel
from pagemill_router.relay.relay import Relay
from pagemill_router.relay.sink import Sink, StreamSink, WholeAnswer
from pagemill_router.servicer.intake import Intake
from pagemill_router.servicer.live_ids import LiveIds, previous_attempts
from pagemill_router.servicer.record import CallRecord, recorded
from pagemill_router.telemetry import RouterTelemetry

Context = grpc.aio.ServicerContext[Any, Any]

RETRY_KEY = "grpc-previous-rpc-attempts"


class GenerationService:
    """The handlers. `generate` writes serialised messages; see `handlers`."""

    def __init__(
        self,
        router: str,
        fleet: Fleet,
        intake: Intake,
        relay: Relay,
        telemetry: RouterTelemetry,
        clock: Callable[[], float],
    ) -> None:
        self.live_ids = LiveIds()
        self._router = router
        self._fleet = fleet
        self._intake = intake
        self._relay = relay
        self._telemetry = telemetry
        self._clock = clock

    async def generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """Streams the answer."""
        await self._answer("Generate", request, context, StreamSink(context))

    async def generate_text(self, request: pb.GenerateTextRequest, context: Context) -> pb.GenerateTextResponse:
        """Answers once."""
        whole = WholeAnswer()
        await self._answer("GenerateText", request.request, context, whole)
        return whole.response()

    async def _answer(self, method: str, request: pb.GenerateRequest, context: Context, sink: Sink) -> None:
        arrived = self._clock()
        metadata = tuple(context.invocation_metadata() or ())
        retries = previous_attempts(next((value for key, value in metadata if key == RETRY_KEY), None))
        given = request.request_id
        # What is wrong with a caller's id is intake's to say: a wrong one is nobody's, and its beginning is logged.
        request_id = given[:128] or f"req-{secrets.token_hex(12)}"
        claimed = request_id if not given or valid_request_id(given) else f"invalid-{secrets.token_hex(12)}"
        attributes = {
            names.ATTR_OPERATION: names.OPERATION_CHAT if request.HasField("chat") else names.OPERATION_TEXT,
            names.ATTR_PROVIDER: names.PROVIDER,
            names.ATTR_REQUEST_ID: request_id,
            names.ATTR_ROUTER: self._router,
        }
        record = CallRecord(method, request_id, arrived)
        with (
            self._telemetry.span(names.SPAN_ROUTER, attributes, context=telemetry.extract(metadata)) as span,
            recorded(record, span, self._telemetry, self._clock),
        ):
            with self.live_ids.claim(claimed, previous_attempts=retries):
                job = await self._intake.accept(request, arrived, context.time_remaining(), request_id, record.known)
                record.job = job
                await self._relay.run(job, sink, record.outcome)
            self._intake.observe(job, record.outcome.delivered.tokens_per_choice)

    async def tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """The ids that Generate would use."""
        return await self._intake.tokenize(request)

    async def detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """The text of ids."""
        return await self._intake.detokenize(request)

    async def list_models(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The models that ready replicas serve, by name."""
        return pb.ListModelsResponse(models=self._ready_models())

    async def get_model(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """One model; NOT_FOUND where no ready replica serves it."""
        model = self._describe(await self._intake.resolve(request.model))
        if not model.ready_replicas:
            raise errors.model_not_found(model.name, [other.name for other in self._ready_models()])
        return pb.GetModelResponse(model=model)

    def _ready_models(self) -> list[model_pb2.Model]:
        described = [self._describe(served) for served in self._intake.book.all()]
        return [model for model in described if model.ready_replicas]

    def _describe(self, served: ServedModel) -> model_pb2.Model:
        model = model_pb2.Model()
        model.CopyFrom(served.model)
        model.ready_replicas = len(self._fleet.snapshot().ready(model.name))
        model.max_request_tokens = served.max_request_tokens
        return model
