"""What a router sends to a replica."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from pagemill.v1 import generation_pb2, internal_pb2
from pagemill_common.intake.pieces import extend
from pagemill_common.intake.prepare import Prepared

__all__ = ["to_forwarded"]


def to_forwarded(
    request: generation_pb2.GenerateRequest,
    prepared: Prepared,
    seed: int,
    placement: internal_pb2.Placement,
    *,
    time_left: float | None = None,
) -> generation_pb2.GenerateRequest:
    """The request as a replica gets it: token ids for a prompt, every knob set, the router's own fields in `placement`.

    `seed` is the one in effect. `time_left` is in seconds; None keeps the request's timeout. `prepare` of the
    result, with the same facts, equals `prepared` with the seed and the time filled in.
    """
    prompt = generation_pb2.TokenIds()
    extend(prompt.ids, prepared.prompt_ids)
    forwarded = generation_pb2.GenerateRequest(
        request_id=request.request_id,
        model=request.model,
        token_ids=prompt,
        sampling=_sampling(prepared, seed),
        stop=_stop(prepared),
        output=generation_pb2.OutputOptions(
            skip_special_tokens=prepared.skip_special_tokens, token_ids=prepared.want_token_ids
        ),
        allow_approximate_resume=prepared.allow_approximate_resume,
        placement=placement,
    )
    if time_left is not None:
        forwarded.timeout.CopyFrom(_duration(time_left))
    elif request.HasField("timeout"):
        forwarded.timeout.CopyFrom(request.timeout)
    return forwarded


def _sampling(prepared: Prepared, seed: int) -> generation_pb2.SamplingParams:
    sampling = prepared.sampling
    return generation_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        banned_token_ids=sampling.banned_token_ids,
        seed=seed,
    )


def _stop(prepared: Prepared) -> generation_pb2.StopConditions:
    return generation_pb2.StopConditions(
        max_tokens=prepared.max_tokens,
        min_tokens=prepared.min_tokens,
        strings=prepared.stop_strings,
        token_ids=prepared.stop_token_ids,
        include_stop=prepared.include_stop,
        ignore_end_of_text=not prepared.end_of_text_ids,
    )


def _duration(seconds: float) -> Duration:
    # A replica refuses a timeout of 0; one that has just passed ends there by itself.
    nanos = max(1, round(seconds * 1e9))
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
