"""A prepared request as the engine takes it, and what of it was delivered before."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.v1 import internal_pb2
from pagemill_common import errors
from pagemill_common.intake import Prepared
from pagemill_common.tokenisation import Detokeniser, TextDelta
from pagemill_replica.engine.messages import Submit
from pagemill_replica.engine.params import Sampling, Stop


@dataclass(frozen=True, slots=True)
class Replay:
    """What earlier attempts delivered of choice 0, and what the first attempt counted."""

    token_ids: list[int]
    text_bytes: int
    seed: int
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, placement: internal_pb2.Placement) -> Replay | None:
        """What a router's continuation says; None where there is none."""
        if not placement.HasField("continuation"):
            return None
        told = placement.continuation
        choice = next((c for c in told.choices if c.index == 0), internal_pb2.ChoiceProgress())
        return cls(list(choice.token_ids), choice.text_bytes, told.seed, told.prompt_tokens, told.cached_tokens)

    def run(self, detokeniser: Detokeniser) -> TextDelta:
        """Brings the detokeniser to where the caller is; the text that follows. Raises INVALID_ARGUMENT."""
        try:
            return detokeniser.replay(self.token_ids, self.text_bytes)
        except ValueError as mismatch:
            raise errors.bad_fields([("placement.continuation.choices[0].text_bytes", str(mismatch))]) from None


@dataclass(frozen=True, slots=True)
class OutputText:
    """The detokeniser of a request's output, brought to where its caller is."""

    detokeniser: Detokeniser
    replay: Replay | None
    rest: TextDelta | None
    """The text that follows what earlier attempts delivered; None where there were none."""

    @classmethod
    def of(cls, detokeniser: Detokeniser, replay: Replay | None) -> OutputText:
        """Replays what there is to replay. Raises INVALID_ARGUMENT."""
        return cls(detokeniser, replay, None if replay is None else replay.run(detokeniser))


def submission(
    prepared: Prepared,
    *,
    key: int,
    seed: int,
    replay: Replay | None,
    salt: bytes,
    time_left: float,
    traceparent: str,
) -> Submit:
    """The message for the engine. `time_left` in seconds."""
    wanted = prepared.sampling
    return Submit(
        key=key,
        prompt_ids=prepared.prompt_ids,
        sampling=Sampling(
            temperature=wanted.temperature,
            top_k=wanted.top_k,
            top_p=wanted.top_p,
            min_p=wanted.min_p,
            repetition_penalty=wanted.repetition_penalty,
            frequency_penalty=wanted.frequency_penalty,
            presence_penalty=wanted.presence_penalty,
            logit_bias=wanted.logit_bias,
            banned_token_ids=wanted.banned_token_ids,
            seed=seed,
        ),
        stop=Stop(
            max_tokens=prepared.max_tokens,
            min_tokens=prepared.min_tokens,
            stop_token_ids=prepared.stop_token_ids,
            end_of_text_ids=prepared.end_of_text_ids,
        ),
        output_ids=[] if replay is None else replay.token_ids,
        time_left=time_left,
        salt=salt,
        traceparent=traceparent,
    )
