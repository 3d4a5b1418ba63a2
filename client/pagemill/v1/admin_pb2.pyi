import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from pagemill.v1 import generation_pb2 as _generation_pb2
from pagemill.v1 import replica_pb2 as _replica_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaStanding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STANDING_UNSPECIFIED: _ClassVar[ReplicaStanding]
    REPLICA_STANDING_READY: _ClassVar[ReplicaStanding]
    REPLICA_STANDING_NOT_READY: _ClassVar[ReplicaStanding]
    REPLICA_STANDING_DRAINING: _ClassVar[ReplicaStanding]
    REPLICA_STANDING_CORDONED: _ClassVar[ReplicaStanding]
    REPLICA_STANDING_LOST: _ClassVar[ReplicaStanding]

class AdmissionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADMISSION_MODE_UNSPECIFIED: _ClassVar[AdmissionMode]
    ADMISSION_MODE_REDIS: _ClassVar[AdmissionMode]
    ADMISSION_MODE_LOCAL: _ClassVar[AdmissionMode]
REPLICA_STANDING_UNSPECIFIED: ReplicaStanding
REPLICA_STANDING_READY: ReplicaStanding
REPLICA_STANDING_NOT_READY: ReplicaStanding
REPLICA_STANDING_DRAINING: ReplicaStanding
REPLICA_STANDING_CORDONED: ReplicaStanding
REPLICA_STANDING_LOST: ReplicaStanding
ADMISSION_MODE_UNSPECIFIED: AdmissionMode
ADMISSION_MODE_REDIS: AdmissionMode
ADMISSION_MODE_LOCAL: AdmissionMode

class ReplicaStatus(_message.Message):
    __slots__ = ("address", "standing", "reason", "state", "age", "open_streams", "known_blocks")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    OPEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    address: str
    standing: ReplicaStanding
    reason: str
    state: _replica_pb2.ReplicaState
    age: _duration_pb2.Duration
    open_streams: int
    known_blocks: int
    def __init__(self, address: _Optional[str] = ..., standing: _Optional[_Union[ReplicaStanding, str]] = ..., reason: _Optional[str] = ..., state: _Optional[_Union[_replica_pb2.ReplicaState, _Mapping]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., open_streams: _Optional[int] = ..., known_blocks: _Optional[int] = ...) -> None: ...

class ListReplicasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReplicasResponse(_message.Message):
    __slots__ = ("replicas", "router", "admission_mode", "policy", "queued", "router_pid")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_MODE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    ROUTER_PID_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    router: str
    admission_mode: AdmissionMode
    policy: str
    queued: int
    router_pid: int
    def __init__(self, replicas: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., router: _Optional[str] = ..., admission_mode: _Optional[_Union[AdmissionMode, str]] = ..., policy: _Optional[str] = ..., queued: _Optional[int] = ..., router_pid: _Optional[int] = ...) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("replica", "reason")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    replica: str
    reason: str
    def __init__(self, replica: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CordonResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaStatus
    def __init__(self, replica: _Optional[_Union[ReplicaStatus, _Mapping]] = ...) -> None: ...

class UncordonRequest(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: str
    def __init__(self, replica: _Optional[str] = ...) -> None: ...

class UncordonResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaStatus
    def __init__(self, replica: _Optional[_Union[ReplicaStatus, _Mapping]] = ...) -> None: ...

class ExplainRouteRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: _generation_pb2.GenerateRequest
    def __init__(self, request: _Optional[_Union[_generation_pb2.GenerateRequest, _Mapping]] = ...) -> None: ...

class RouteCandidate(_message.Message):
    __slots__ = ("replica", "rank", "cost", "hit_blocks", "need_blocks", "fill", "reason")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    replica: str
    rank: int
    cost: float
    hit_blocks: int
    need_blocks: int
    fill: float
    reason: str
    def __init__(self, replica: _Optional[str] = ..., rank: _Optional[int] = ..., cost: _Optional[float] = ..., hit_blocks: _Optional[int] = ..., need_blocks: _Optional[int] = ..., fill: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ExplainRouteResponse(_message.Message):
    __slots__ = ("policy", "candidates", "prompt_tokens", "expected_output_tokens", "admission_mode")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_MODE_FIELD_NUMBER: _ClassVar[int]
    policy: str
    candidates: _containers.RepeatedCompositeFieldContainer[RouteCandidate]
    prompt_tokens: int
    expected_output_tokens: int
    admission_mode: AdmissionMode
    def __init__(self, policy: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[RouteCandidate, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., expected_output_tokens: _Optional[int] = ..., admission_mode: _Optional[_Union[AdmissionMode, str]] = ...) -> None: ...
