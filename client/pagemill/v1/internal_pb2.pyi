import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Placement(_message.Message):
    __slots__ = ("call_id", "attempt", "reservation_id", "epoch", "need_blocks", "kv_salt", "continuation", "router")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_SALT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    attempt: int
    reservation_id: str
    epoch: str
    need_blocks: int
    kv_salt: bytes
    continuation: Continuation
    router: str
    def __init__(self, call_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reservation_id: _Optional[str] = ..., epoch: _Optional[str] = ..., need_blocks: _Optional[int] = ..., kv_salt: _Optional[bytes] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ..., router: _Optional[str] = ...) -> None: ...

class ChoiceProgress(_message.Message):
    __slots__ = ("index", "token_ids", "text_bytes", "finished", "finish_reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text_bytes: int
    finished: bool
    finish_reason: int
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text_bytes: _Optional[int] = ..., finished: _Optional[bool] = ..., finish_reason: _Optional[int] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("prompt_ids", "choices", "seed", "prompt_tokens", "cached_tokens", "remaining", "attempt")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceProgress]
    seed: int
    prompt_tokens: int
    cached_tokens: int
    remaining: _duration_pb2.Duration
    attempt: int
    def __init__(self, prompt_ids: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[_Union[ChoiceProgress, _Mapping]]] = ..., seed: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("started", "delta", "finished", "resumed")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    started: SkippedFrame
    delta: DeltaHeader
    finished: FinishedHeader
    resumed: SkippedFrame
    def __init__(self, started: _Optional[_Union[SkippedFrame, _Mapping]] = ..., delta: _Optional[_Union[DeltaHeader, _Mapping]] = ..., finished: _Optional[_Union[FinishedHeader, _Mapping]] = ..., resumed: _Optional[_Union[SkippedFrame, _Mapping]] = ...) -> None: ...

class SkippedFrame(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeltaHeader(_message.Message):
    __slots__ = ("index", "token_ids", "position", "text_offset")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    position: int
    text_offset: int
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., position: _Optional[int] = ..., text_offset: _Optional[int] = ...) -> None: ...

class FinishedHeader(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: int
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[int] = ...) -> None: ...

class PartialOutput(_message.Message):
    __slots__ = ("tokens_per_choice",)
    TOKENS_PER_CHOICE_FIELD_NUMBER: _ClassVar[int]
    tokens_per_choice: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens_per_choice: _Optional[_Iterable[int]] = ...) -> None: ...
