"""A real gRPC server on loopback, for tests of callers: each test writes its answers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pagemill.v1 import admin_pb2, admin_pb2_grpc, generation_pb2_grpc, model_pb2
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from pagemill_common.errors import StatusError

Behaviour = Callable[[pb.GenerateRequest, grpc.ServicerContext], Iterator[pb.GenerateResponse]]


def started(replica: str = "replica-0") -> pb.GenerateResponse:
    return pb.GenerateResponse(
        started=pb.Started(
            request_id="r-1", model="tiny", replica=replica, prompt_tokens=5, cached_tokens=2, seed=2**64 - 1
        )
    )


def delta(text: str, *ids: int, position: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.Delta(text=text, token_ids=ids, position=position))


def finished(completion: int = 3) -> pb.GenerateResponse:
    message = pb.Finished(
        reason=pb.FINISH_REASON_STOP_STRING,
        matched_string="END",
        usage=pb.Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=completion),
    )
    message.timing.prefill.FromMilliseconds(250)
    return pb.GenerateResponse(finished=message)


def whole_answer(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
    yield started()
    yield delta("Hello", 1)
    yield delta(", world", 2, 3, position=1)
    yield finished()


def fail(error: StatusError, context: grpc.ServicerContext) -> Any:
    context.set_trailing_metadata(error.trailing_metadata())
    context.abort(error.code, error.message)


def endless(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
    """Says something, then waits for the caller to go away."""
    yield started()
    yield delta("on and on", 1)
    gone = threading.Event()
    if context.add_callback(gone.set):
        gone.wait(30)


def without_pause(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
    """Says one letter after the other, as fast as they are taken, until the caller goes away."""
    yield started()
    for position in itertools.count():
        if not context.is_active():
            return
        yield delta("x", 1, position=position)


@dataclass
class FakeServer:
    """What the server does, and what it has seen."""

    address: str = ""
    generate: Behaviour = whole_answer
    text: Callable[[pb.GenerateRequest, grpc.ServicerContext], pb.GenerateTextResponse] | None = None
    admin_error: StatusError | None = None
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    remaining: list[float | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    health: health.HealthServicer = field(default_factory=health.HealthServicer)

    def note(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        self.remaining.append(context.time_remaining())
        context.add_callback(self.ended.set)


class _Generation(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    def Generate(self, request, context):
        self._fake.note(request, context)
        yield from self._fake.generate(request, context)

    def GenerateText(self, request, context):
        self._fake.note(request.request, context)
        if self._fake.text is not None:
            return self._fake.text(request.request, context)
        choice = pb.Choice(text="Hello, world", token_ids=[1, 2, 3], finished=finished().finished)
        return pb.GenerateTextResponse(started=started().started, choices=[choice])

    def Tokenize(self, request, context):
        text = request.text or "".join(f"<{m.role}>{m.content}" for m in request.chat.messages)
        return pb.TokenizeResponse(model="tiny", token_ids=[ord(c) for c in text], pieces=list(text), rendered=text)

    def Detokenize(self, request, context):
        return pb.DetokenizeResponse(model="tiny", text="".join(map(chr, request.token_ids)))

    def ListModels(self, request, context):
        return pb.ListModelsResponse(models=[_model()])

    def GetModel(self, request, context):
        if request.model not in ("", "tiny"):
            fail(errors.model_not_found(request.model, ["tiny"]), context)
        return pb.GetModelResponse(model=_model())


class _Admin(admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    def ListReplicas(self, request, context):
        return admin_pb2.ListReplicasResponse(
            replicas=[_replica(admin_pb2.REPLICA_STANDING_READY)],
            router="router-0",
            router_pid=42,
            policy="least_loaded",
            admission_mode=admin_pb2.ADMISSION_MODE_REDIS,
        )

    def Cordon(self, request, context):
        if self._fake.admin_error is not None:
            fail(self._fake.admin_error, context)
        return admin_pb2.CordonResponse(replica=_replica(admin_pb2.REPLICA_STANDING_CORDONED, request.reason))

    def Uncordon(self, request, context):
        return admin_pb2.UncordonResponse(replica=_replica(admin_pb2.REPLICA_STANDING_READY))

    def ExplainRoute(self, request, context):
        self._fake.requests.append(request.request)
        candidate = admin_pb2.RouteCandidate(replica="replica-0", rank=0, cost=0.5, need_blocks=4, fill=0.25)
        return admin_pb2.ExplainRouteResponse(
            policy="least_loaded",
            candidates=[candidate],
            prompt_tokens=5,
            expected_output_tokens=16,
            admission_mode=admin_pb2.ADMISSION_MODE_LOCAL,
        )


def _model() -> model_pb2.Model:
    return model_pb2.Model(
        name="tiny", aliases=["small"], family="llama", max_context_tokens=2048, dtype="bfloat16", ready_replicas=1
    )


def _replica(standing: admin_pb2.ReplicaStanding.ValueType, reason: str = "") -> admin_pb2.ReplicaStatus:
    status = admin_pb2.ReplicaStatus(address="127.0.0.1:1", standing=standing, reason=reason)
    status.state.name = "replica-0"
    status.state.capacity_blocks = 100
    status.state.committed_blocks = 25
    status.state.model.CopyFrom(_model())
    return status


def start_server(fake: FakeServer) -> grpc.Server:
    pool = ThreadPoolExecutor(max_workers=16)
    server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(_Generation(fake), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(_Admin(fake), server)
    fake.health.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    return server
