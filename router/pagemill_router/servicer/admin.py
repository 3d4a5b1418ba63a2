"""AdminService: what a platform engineer asks of a router."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from pagemill.v1 import admin_pb2 as pb
from pagemill.v1 import admin_pb2_grpc
from pagemill_common import errors
from pagemill_common.errors import StatusError
from pagemill_router.admission.admission import Admission
from pagemill_router.admission.types import Mode
from pagemill_router.fleet.fleet import Fleet
from pagemill_router.fleet.link import ReplicaLink
from pagemill_router.fleet.view import Standing
from pagemill_router.placement.job import Job
from pagemill_router.placement.placer import Placer
from pagemill_router.policies.base import Candidate, refusal
from pagemill_router.servicer.intake import Intake

Context = grpc.aio.ServicerContext[Any, Any]

MAX_REASON = 256
"""Characters of a cordon's reason: ListReplicas and the log repeat it."""

_STANDINGS = {
    Standing.READY: pb.REPLICA_STANDING_READY,
    Standing.NOT_READY: pb.REPLICA_STANDING_NOT_READY,
    Standing.DRAINING: pb.REPLICA_STANDING_DRAINING,
    Standing.CORDONED: pb.REPLICA_STANDING_CORDONED,
    Standing.LOST: pb.REPLICA_STANDING_LOST,
}
_MODES = {Mode.REDIS: pb.ADMISSION_MODE_REDIS, Mode.LOCAL: pb.ADMISSION_MODE_LOCAL}


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Answers from the router's own view of the fleet."""

    def __init__(
        self,
        router: str,
        fleet: Fleet,
        placer: Placer,
        admission: Admission,
        intake: Intake,
        clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._fleet = fleet
        self._placer = placer
        self._admission = admission
        self._intake = intake
        self._clock = clock

    async def ListReplicas(  # noqa: N802 - the name in the protocol
        self, request: pb.ListReplicasRequest, context: Context
    ) -> pb.ListReplicasResponse:
        """All replicas by name, those refused or lost with the reason."""
        statuses = [self._status(link) for link in self._fleet.links()]
        return pb.ListReplicasResponse(
            replicas=sorted(statuses, key=lambda one: (one.state.name, one.address)),
            router=self._router,
            admission_mode=_MODES[self._admission.mode],
            policy=self._placer.policy.name,
            queued=self._placer.room.length,
            router_pid=os.getpid(),
        )

    async def Cordon(  # noqa: N802 - the name in the protocol
        self, request: pb.CordonRequest, context: Context
    ) -> pb.CordonResponse:
        """Cordons by name; NOT_FOUND for a name nobody bears, INVALID_ARGUMENT for a long reason."""
        if len(request.reason) > MAX_REASON:
            raise errors.bad_fields([("reason", f"must be at most {MAX_REASON} characters, not {len(request.reason)}")])
        link = self._named(request.replica)
        self._fleet.cordon(request.replica, request.reason)
        return pb.CordonResponse(replica=self._status(link))

    async def Uncordon(  # noqa: N802 - the name in the protocol
        self, request: pb.UncordonRequest, context: Context
    ) -> pb.UncordonResponse:
        """Takes Cordon back; NOT_FOUND for a name nobody bears."""
        link = self._named(request.replica)
        self._fleet.uncordon(request.replica)
        return pb.UncordonResponse(replica=self._status(link))

    async def ExplainRoute(  # noqa: N802 - the name in the protocol
        self, request: pb.ExplainRouteRequest, context: Context
    ) -> pb.ExplainRouteResponse:
        """Ranks for the request as Generate would, and reserves nothing."""
        job = await self._intake.accept(request.request, arrived=self._clock(), time_remaining=None)
        ranked = self._placer.rank(job)
        candidates = [self._candidate(rank, one) for rank, one in enumerate(ranked)]
        return pb.ExplainRouteResponse(
            policy=self._placer.policy.name,
            candidates=candidates + self._left_out(job, {one.replica.key for one in ranked}),
            prompt_tokens=job.prompt_tokens,
            expected_output_tokens=job.expected_output,
            admission_mode=_MODES[self._admission.mode],
        )

    def _candidate(self, rank: int, one: Candidate) -> pb.RouteCandidate:
        return pb.RouteCandidate(
            replica=one.replica.name,
            rank=rank,
            cost=one.cost,
            hit_blocks=one.hit_blocks,
            need_blocks=one.need,
            fill=one.replica.fill(one.need),
            reason=one.reason,
        )

    def _left_out(self, job: Job, ranked: set[str]) -> list[pb.RouteCandidate]:
        route = job.route()
        left = [view for view in self._fleet.snapshot().replicas if not view.epoch or view.key not in ranked]
        return [
            pb.RouteCandidate(replica=view.name or view.address, rank=-1, reason=refusal(view, route))
            for view in sorted(left, key=lambda view: (view.name, view.address))
        ]

    def _named(self, name: str) -> ReplicaLink:
        link = self._fleet.by_name(name)
        if link is None:
            text = f"no replica is called {name[:128]!r}"
            resource = error_details_pb2.ResourceInfo(
                resource_type="replica", resource_name=name[:128], description=text
            )
            raise StatusError(grpc.StatusCode.NOT_FOUND, text, (resource,))
        return link

    def _status(self, link: ReplicaLink) -> pb.ReplicaStatus:
        view = link.view()
        status = pb.ReplicaStatus(
            address=view.address,
            standing=_STANDINGS[view.standing],
            reason=view.reason,
            open_streams=view.open_streams,
            known_blocks=len(view.cached),
        )
        if link.state is not None:
            status.state.CopyFrom(link.state)
        if view.last_heard is not None:
            age = Duration()
            age.FromNanoseconds(round((self._clock() - view.last_heard) * 1e9))
            status.age.CopyFrom(age)
        return status
