"""The made-up model: reproducible, and sensitive to every token before."""

from __future__ import annotations

import pytest

from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan
from pagemill_replica.engine.testing import Script, ScriptedRunner, scripted_output


def scheduled(tokens: list[int], start: int, table: list[int], sampling: Sampling | None = None) -> StepPlan:
    sequence = ScheduledSequence(
        key=1,
        token_ids=tokens,
        start=start,
        block_table=table,
        samples=True,
        sampling=sampling or Sampling(),
        prompt_ids=[],
        output_ids=[],
    )
    return StepPlan([sequence])


def test_a_script_is_read_from_text() -> None:
    script = Script.parse("vocab=100, low=3,delay=0.5")
    assert (script.vocab, script.low, script.delay, script.blocks) == (100, 3, 0.5, Script().blocks)
    assert Script.parse("") == Script()


@pytest.mark.parametrize("text", ["vocab=x", "speed=3", "vocab", "low=9,vocab=9"])
def test_a_broken_script_names_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition(",")[0].partition("=")[0]):
        Script.parse(text)


@pytest.mark.parametrize("change", [{"prompt": [1, 2, 4]}, {"seed": 8}, {"choice_index": 1}])
def test_output_depends_on_prompt_seed_and_choice(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"prompt": [1, 2, 3], "seed": 7, "choice_index": 0}

    def output(prompt: list[int], seed: int, choice_index: int) -> list[int]:
        return scripted_output(prompt, Sampling(seed=seed, choice_index=choice_index), 8, Script())

    assert output(**fields) == output(**fields)  # type: ignore[arg-type]
    assert output(**fields) != output(**(fields | change))  # type: ignore[arg-type]


def test_greedy_output_ignores_the_seed() -> None:
    one, two = (scripted_output([1], Sampling(temperature=0.0, seed=s), 8, Script()) for s in (1, 2))
    assert one == two


def test_banned_ids_and_ids_below_the_lowest_are_not_drawn() -> None:
    output = scripted_output([1], Sampling(banned_token_ids=(4, 5)), 200, Script(vocab=8, low=2))
    assert set(output) == {2, 3, 6, 7}


def test_the_end_of_text_comes_about_as_often_as_told() -> None:
    output = scripted_output([1], Sampling(), 4000, Script(end_id=0, low=1, end_every=20))
    assert 120 < output.count(0) < 300


def test_blocks_in_any_order_give_the_same_output() -> None:
    script = Script()
    tokens = list(range(10))
    expected = scripted_output(tokens, Sampling(), 1, script)
    runner = ScriptedRunner(script, 8, 4)
    assert runner.execute(scheduled(tokens, 0, [5, 0, 7])) == expected
    runner.execute(scheduled(tokens[:6], 0, [3, 1, 2]))
    assert runner.execute(scheduled(tokens[6:], 6, [3, 1, 2])) == expected


def test_a_wrong_block_changes_the_output() -> None:
    script = Script()
    runner = ScriptedRunner(script, 8, 4)
    runner.execute(scheduled([1, 2, 3, 4], 0, [0]))
    runner.execute(scheduled([4, 3, 2, 1], 0, [1]))
    right = runner.execute(scheduled([5], 4, [0, 2]))
    assert runner.execute(scheduled([5], 4, [1, 3])) != right


def test_reading_what_nobody_wrote_fails() -> None:
    with pytest.raises(RuntimeError, match="position 3, which nobody wrote"):
        ScriptedRunner(Script(), 8, 4).execute(scheduled([5], 4, [0, 2]))


@pytest.mark.parametrize("token", [-1, 512])
def test_ids_outside_the_vocabulary_fail(token: int) -> None:
    with pytest.raises(RuntimeError, match="outside the vocabulary"):
        ScriptedRunner(Script(), 8, 4).execute(scheduled([token], 0, [0]))


def test_it_takes_the_time_it_is_told_to() -> None:
    slept: list[float] = []
    runner = ScriptedRunner(Script(delay=0.5, token_delay=0.25), 8, 4, sleep=slept.append)
    runner.execute(scheduled([1, 2], 0, [0]))
    assert slept == [1.0]


def test_it_fails_where_told_to() -> None:
    with pytest.raises(RuntimeError, match="says to fail"):
        ScriptedRunner(Script(fail_id=9), 8, 4).execute(scheduled([9], 0, [0]))
