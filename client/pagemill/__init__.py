"""LLM inference over gRPC: the client library.

```python
import pagemill

client = pagemill.Client("127.0.0.1:8450")
for chunk in client.generate("Once upon a time", max_tokens=64):
    print(chunk.text, end="")
```
"""

from pagemill.aio import AsyncClient
from pagemill.aio_stream import AsyncGenerateStream
from pagemill.answer import Answer, Choice, Chunk, Finished, FinishReason, Started, Timing, Usage
from pagemill.client import Client
from pagemill.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Exhausted,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    NotReady,
    NotSupported,
    PagemillError,
    PermissionDenied,
    QueueFull,
    QuotaExceeded,
    ReplicaLost,
    TooLong,
    Unauthenticated,
    Unavailable,
    Violation,
)
from pagemill.options import ChatTurn, GenerateOptions
from pagemill.reasons import Reason
from pagemill.stream import GenerateStream

__all__ = [
    "AlreadyExists",
    "Answer",
    "AsyncClient",
    "AsyncGenerateStream",
    "Cancelled",
    "ChatTurn",
    "Choice",
    "Chunk",
    "Client",
    "DeadlineExceeded",
    "Exhausted",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "GenerateStream",
    "InternalError",
    "InvalidRequest",
    "ModelNotFound",
    "NotFound",
    "NotReady",
    "NotSupported",
    "PagemillError",
    "PermissionDenied",
    "QueueFull",
    "QuotaExceeded",
    "Reason",
    "ReplicaLost",
    "Started",
    "Timing",
    "TooLong",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Violation",
]
