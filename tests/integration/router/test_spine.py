"""A call's way through a router to a replica and back."""

from __future__ import annotations

from integration.router.conftest import RunRouter, question

from pagemill.v1 import generation_pb2 as pb
from pagemill_common.capacity import CapacityPool
from support.fake_replica import FakeReplica, text_of


async def test_an_answer_passes_whole(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        heard = await caller.ask(question(max_tokens=7, request_id="mine"))
        assert heard.error is None
        assert heard.text == text_of(7)
        assert heard.token_ids == list(range(7))
        (started,) = heard.started
        assert (started.request_id, started.model, started.replica, started.prompt_tokens) == ("mine", "tiny", "r0", 5)
        (finished,) = heard.finished
        assert finished.usage.completion_tokens == 7
        (seen,) = replica.seen
        placement = seen.request.placement
        assert (placement.attempt, placement.epoch, placement.need_blocks) == (1, replica.epoch, 1)
        assert placement.router == caller.router.settings.name
        assert seen.request.sampling.seed == started.seed
        await caller.idle()


async def test_an_answer_passes_whole_by_way_of_redis(
    run_router: RunRouter, pool: CapacityPool, valkey: object
) -> None:
    async with (
        FakeReplica(pool=pool) as replica,
        run_router(replica, redis_url=valkey.url, pool=pool.keys.pool) as caller,  # type: ignore[attr-defined]
    ):
        heard = await caller.ask(question(max_tokens=3))
        assert heard.error is None
        assert heard.text == text_of(3)
        assert replica.seen[0].request.placement.reservation_id
        await caller.idle()


async def test_generate_text_answers_once(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        whole = await caller.generation.GenerateText(pb.GenerateTextRequest(request=question(max_tokens=4)))
        (choice,) = whole.choices
        assert (choice.text, list(choice.token_ids)) == (text_of(4), [0, 1, 2, 3])
        assert choice.finished.reason == pb.FINISH_REASON_MAX_TOKENS
        assert whole.started.replica == "r0"


async def test_tokens_and_models(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        tokens = await caller.generation.Tokenize(pb.TokenizeRequest(text="héllo", model="small"))
        assert tokens.model == "tiny"
        assert len(tokens.token_ids) == 6
        text = await caller.generation.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
        assert text.text == "héllo"
        models = await caller.generation.ListModels(pb.ListModelsRequest())
        assert [(one.name, one.ready_replicas) for one in models.models] == [("tiny", 1)]
        model = await caller.generation.GetModel(pb.GetModelRequest(model="small"))
        assert model.model.name == "tiny"
