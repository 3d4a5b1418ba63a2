"""Messages as JSON lines show them."""

from __future__ import annotations

import json

from pagemill.cli.plain import plain
from pagemill.v1 import admin_pb2
from pagemill.v1 import generation_pb2 as pb


def test_durations_are_seconds_and_large_numbers_are_numbers() -> None:
    request = pb.GenerateRequest(text="hi")
    request.timeout.FromMilliseconds(1500)
    request.sampling.seed = 2**64 - 1
    found = plain(request)
    assert found["timeout"] == 1.5
    assert found["sampling"]["seed"] == 2**64 - 1
    json.dumps(found)


def test_enums_keep_the_names_of_the_protos() -> None:
    status = admin_pb2.ReplicaStatus(standing=admin_pb2.REPLICA_STANDING_LOST)
    assert plain(status)["standing"] == "REPLICA_STANDING_LOST"


def test_zeros_stand_there_and_what_is_unset_does_not() -> None:
    found = plain(admin_pb2.ReplicaStatus())
    assert (found["address"], found["open_streams"]) == ("", 0)
    assert "state" not in found
    assert "age" not in found
    sampling = plain(pb.SamplingParams(top_k=0))
    assert sampling["top_k"] == 0
    assert "temperature" not in sampling


def test_lists_maps_and_bytes() -> None:
    sampling = plain(pb.SamplingParams(logit_bias={5: -1.0}, banned_token_ids=[1, 2]))
    assert sampling["logit_bias"] == {"5": -1.0}
    assert sampling["banned_token_ids"] == [1, 2]
