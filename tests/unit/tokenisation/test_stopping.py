"""Stop strings and stop tokens: found wherever they are cut, shown never, held back no longer than needed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pagemill_common.tokenisation import Detokeniser, ModelTokenizer
from pagemill_common.tokenisation.stop_matcher import StopMatcher

LETTERS = st.text(alphabet="ab", min_size=1, max_size=5)


def first_stop(text: str, stops: list[str]) -> tuple[str, int] | None:
    """The stop string that is complete first, the longest of several, and where it begins."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return longest, end - len(longest)
    return None


@settings(max_examples=600, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(LETTERS, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_the_matcher_agrees_with_a_search_of_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    places = sorted({min(c, len(text)) for c in cuts} | {0, len(text)})
    hit = None
    for a, b in itertools.pairwise(places):
        hit = matcher.feed(text[a:b])
        if hit is not None:
            break
        # Held back is exactly the longest end of the text that begins a stop string.
        begun = [n for s in stops for n in range(len(s)) if text[:b].endswith(s[:n])]
        assert matcher.held == max(begun, default=0)
    expected = first_stop(text, stops)
    assert (None if hit is None else (hit.string, hit.start)) == expected


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="abé🙂 ", max_size=20),
    stops=st.lists(st.text(alphabet="abé🙂 ", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    include=st.booleans(),
    min_tokens=st.integers(0, 12),
)
def test_the_text_and_the_tokens_used_do_not_depend_on_the_cuts(
    byte_tokenizer: ModelTokenizer, text: str, stops: list[str], cuts: list[int], include: bool, min_tokens: int
) -> None:
    ids = byte_tokenizer.encode(text)

    def run(groups: list[list[int]]) -> tuple[str, str | None, int]:
        detokeniser = Detokeniser(byte_tokenizer, stop_strings=stops, include_stop=include, min_tokens=min_tokens)
        shown, used = "", 0
        for group in groups:
            delta = detokeniser.push(group)
            shown, used = shown + delta.text, used + delta.tokens_used
            if delta.stopped is not None:
                return shown, delta.stopped, used
        rest = detokeniser.finish()
        return shown + rest.text, rest.stopped, used

    places = sorted({min(c, len(ids)) for c in cuts} | {0, len(ids)})
    grouped = run([ids[a:b] for a, b in itertools.pairwise(places)])
    single = run([[i] for i in ids])
    assert grouped == single
    shown, stopped, used = single
    if stopped is None:
        assert (shown, used) == (text, len(ids))
    else:
        assert used >= min_tokens
        # The last token is the one that completed it, and not more than it was needed.
        assert stopped in byte_tokenizer.decode(ids[:used])
        assert text.startswith(shown)
        assert shown.endswith(stopped) if include else text[len(shown) :].startswith(stopped)
    if min_tokens == 0:
        expected = first_stop(text, stops)
        assert stopped == (None if expected is None else expected[0])


def test_a_stop_string_is_found_when_cut_at_every_boundary(byte_tokenizer: ModelTokenizer) -> None:
    stop = "<é🙂>"
    before, after = byte_tokenizer.encode("he "), byte_tokenizer.encode(stop + "more", parse_special=False)
    # One token a byte: boundaries inside characters too.
    singles = [next(i for i in range(256) if byte_tokenizer.token_bytes(i) == bytes([b])) for b in stop.encode()]
    for ids in (after, singles):
        for at in range(1, len(ids)):
            detokeniser = Detokeniser(byte_tokenizer, stop_strings=[stop])
            first = detokeniser.push(before + ids[:at])
            second = detokeniser.push(ids[at:]) if first.stopped is None else None
            assert first.text + (second.text if second else "") == "he "
            assert (first if second is None else second).stopped == stop


def test_only_what_could_become_a_stop_is_held(byte_tokenizer: ModelTokenizer) -> None:
    detokeniser = Detokeniser(byte_tokenizer, stop_strings=["\n\nUser:", "END" * 300])
    texts = [detokeniser.push(byte_tokenizer.encode(part)).text for part in ("one", "\n", "\n", "\n", "two", "EN", "x")]
    assert texts == ["one", "", "", "\n", "\n\ntwo", "", "ENx"]


def test_finish_shows_what_was_held(byte_tokenizer: ModelTokenizer) -> None:
    detokeniser = Detokeniser(byte_tokenizer, stop_strings=["END"])
    assert detokeniser.push(byte_tokenizer.encode("the EN")).text == "the "
    assert detokeniser.finish().text == "EN"
    assert detokeniser.finish().text == ""
    assert detokeniser.push(byte_tokenizer.encode("x")).tokens_used == 0


def test_text_after_the_stop_is_dropped_even_in_the_same_token(byte_tokenizer: ModelTokenizer) -> None:
    the = byte_tokenizer.encode(" the")
    assert len(the) == 1
    for include, shown in ((False, " "), (True, " t")):
        detokeniser = Detokeniser(byte_tokenizer, stop_strings=["t"], include_stop=include)
        delta = detokeniser.push([*the, *byte_tokenizer.encode("more")])
        assert (delta.text, delta.stopped, delta.tokens_used) == (shown, "t", 1)


def test_a_stop_before_min_tokens_is_text_and_one_that_ends_after_counts(byte_tokenizer: ModelTokenizer) -> None:
    ids = byte_tokenizer.encode("aXbXc")
    assert len(ids) == 5
    detokeniser = Detokeniser(byte_tokenizer, stop_strings=["X"], min_tokens=3)
    delta = detokeniser.push(ids)
    assert (delta.text, delta.stopped, delta.tokens_used) == ("aXb", "X", 4)
    # It began before the third token and is complete with it.
    detokeniser = Detokeniser(byte_tokenizer, stop_strings=["aXb"], min_tokens=3)
    assert detokeniser.push(ids).stopped == "aXb"
    detokeniser = Detokeniser(byte_tokenizer, stop_strings=["aXb"], min_tokens=4)
    assert detokeniser.push(ids).text == "aXbXc"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_the_text_of_the_stop_token(byte_tokenizer: ModelTokenizer, skip: bool, include: bool, together: bool) -> None:
    ids, end = byte_tokenizer.encode("he"), byte_tokenizer.encode("</s>")
    detokeniser = Detokeniser(byte_tokenizer, skip_special_tokens=skip, include_stop=include)
    groups = [ids + end] if together else [ids, end]
    shown = "".join(detokeniser.push(group).text for group in groups)
    shown += detokeniser.finish(last_is_stop_token=True).text
    assert shown == ("he</s>" if include and not skip else "he")


def test_a_visible_stop_token_waits_for_the_verdict(byte_tokenizer: ModelTokenizer) -> None:
    dot = byte_tokenizer.encode(".")
    for last_is_stop, rest in ((True, ""), (False, ".")):
        detokeniser = Detokeniser(byte_tokenizer, stop_token_ids=dot)
        # The first did not end the text, as more came; the last may.
        assert detokeniser.push([*dot, *dot]).text == "."
        assert detokeniser.finish(last_is_stop_token=last_is_stop).text == rest


def test_a_stop_string_completed_by_a_token_that_waited(byte_tokenizer: ModelTokenizer) -> None:
    dot = byte_tokenizer.encode(".")
    detokeniser = Detokeniser(byte_tokenizer, stop_token_ids=dot, stop_strings=["a."])
    assert detokeniser.push([*byte_tokenizer.encode("xa"), *dot]).text == "x"
    delta = detokeniser.push(byte_tokenizer.encode("he"))
    assert (delta.text, delta.stopped, delta.tokens_used) == ("", "a.", 0)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 300), max_size=30), at=st.integers(0, 30), stops=st.lists(LETTERS, max_size=2))
def test_replay_goes_on_where_the_delivered_text_ended(
    tokenizer: ModelTokenizer, ids: list[int], at: int, stops: list[str]
) -> None:
    first = Detokeniser(tokenizer, stop_strings=stops)
    head = first.push(ids[:at])
    assume(head.stopped is None)
    tail = first.push(ids[at:])
    second = Detokeniser(tokenizer, stop_strings=stops)
    replayed = second.replay(ids[:at], len(head.text.encode()))
    assert (replayed.text, replayed.stopped, replayed.tokens_used) == ("", None, len(ids[:at]))
    assert second.push(ids[at:]) == tail
    if tail.stopped is None:
        assert second.finish() == first.finish()


def test_replay_of_text_that_had_not_all_been_delivered(byte_tokenizer: ModelTokenizer) -> None:
    ids = byte_tokenizer.encode("né the END")
    detokeniser = Detokeniser(byte_tokenizer, stop_strings=["END"])
    delta = detokeniser.replay(ids, 3)
    assert (delta.text, delta.stopped) == (" the ", "END")
    for wrong in (2, 1000):
        with pytest.raises(ValueError, match="text"):
            Detokeniser(byte_tokenizer).replay(ids, wrong)
