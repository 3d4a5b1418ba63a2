"""The messages of one stream."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from pagemill.v1 import generation_pb2
from pagemill_replica.engine.messages import Timing
from pagemill_replica.front.live import Finish
from pagemill_replica.front.output import Piece


def started(
    *, request_id: str, model: str, replica: str, prompt_tokens: int, cached_tokens: int, seed: int
) -> generation_pb2.GenerateResponse:
    """The first message."""
    return generation_pb2.GenerateResponse(
        started=generation_pb2.Started(
            request_id=request_id,
            model=model,
            replica=replica,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            seed=seed,
        )
    )


def delta(piece: Piece, *, with_ids: bool) -> generation_pb2.GenerateResponse | None:
    """New output of choice 0, or None where nothing of it is to be shown."""
    if not piece.text and not (with_ids and piece.token_ids):
        return None
    return generation_pb2.GenerateResponse(
        delta=generation_pb2.Delta(
            text=piece.text,
            token_ids=piece.token_ids if with_ids else (),
            position=piece.position,
            text_offset=piece.text_offset,
        )
    )


def finished(finish: Finish, usage: generation_pb2.Usage, timing: Timing) -> generation_pb2.GenerateResponse:
    """The last message."""
    return generation_pb2.GenerateResponse(
        finished=generation_pb2.Finished(
            reason=finish.reason,
            matched_string=finish.matched_string,
            matched_token_id=finish.matched_token_id,
            usage=usage,
            timing=generation_pb2.Timing(
                queue=_duration(timing.queue), prefill=_duration(timing.prefill), decode=_duration(timing.decode)
            ),
        )
    )


def _duration(seconds: float) -> Duration:
    found = Duration()
    found.FromNanoseconds(max(0, round(seconds * 1e9)))
    return found
