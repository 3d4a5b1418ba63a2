import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from pagemill.v1 import model_pb2 as _model_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchStateRequest(_message.Message):
    __slots__ = ("router",)
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    router: str
    def __init__(self, router: _Optional[str] = ...) -> None: ...

class WatchStateResponse(_message.Message):
    __slots__ = ("state", "kv_events", "seen_reservation_ids")
    STATE_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SEEN_RESERVATION_IDS_FIELD_NUMBER: _ClassVar[int]
    state: ReplicaState
    kv_events: KvEvents
    seen_reservation_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[ReplicaState, _Mapping]] = ..., kv_events: _Optional[_Union[KvEvents, _Mapping]] = ..., seen_reservation_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("name", "epoch", "model", "capacity_blocks", "used_blocks", "committed_blocks", "waiting", "running", "draining", "ready", "steps", "tokens_per_second", "watching_routers", "front_pid", "engine_pid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    WATCHING_ROUTERS_FIELD_NUMBER: _ClassVar[int]
    FRONT_PID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PID_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: str
    model: _model_pb2.Model
    capacity_blocks: int
    used_blocks: int
    committed_blocks: int
    waiting: int
    running: int
    draining: bool
    ready: bool
    steps: int
    tokens_per_second: float
    watching_routers: int
    front_pid: int
    engine_pid: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[str] = ..., model: _Optional[_Union[_model_pb2.Model, _Mapping]] = ..., capacity_blocks: _Optional[int] = ..., used_blocks: _Optional[int] = ..., committed_blocks: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., draining: _Optional[bool] = ..., ready: _Optional[bool] = ..., steps: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., watching_routers: _Optional[int] = ..., front_pid: _Optional[int] = ..., engine_pid: _Optional[int] = ...) -> None: ...

class KvEvents(_message.Message):
    __slots__ = ("snapshot", "stored", "removed")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    snapshot: bool
    stored: _containers.RepeatedScalarFieldContainer[bytes]
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, snapshot: _Optional[bool] = ..., stored: _Optional[_Iterable[bytes]] = ..., removed: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("live_requests", "grace")
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    live_requests: int
    grace: _duration_pb2.Duration
    def __init__(self, live_requests: _Optional[int] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ("known_digest",)
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    known_digest: bytes
    def __init__(self, known_digest: _Optional[bytes] = ...) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: TokenizerHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[TokenizerHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class TokenizerHeader(_message.Message):
    __slots__ = ("digest", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...
