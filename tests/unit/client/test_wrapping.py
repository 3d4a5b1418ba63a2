"""Answers on a terminal break between words."""

from __future__ import annotations

import itertools
import re

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from pagemill.cli.wrapping import Wrapper


def screen(pieces: list[str], width: int) -> list[str]:
    """The lines on a terminal that breaks at its edge and knows two commands: go to a column, erase to the end."""
    wrapper = Wrapper(lambda: width)
    lines, cursor = [""], 0
    for part in re.findall(r"\x1b\[\d*[GK]|.|\n", "".join(map(wrapper.feed, pieces))):
        if part == "\n":
            lines.append("")
            cursor = 0
        elif part.endswith("G") and part.startswith("\x1b"):
            cursor = int(part[2:-1]) - 1
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:cursor]
        else:
            if cell_len(lines[-1]) + cell_len(part) > width:
                lines.append("")
            lines[-1] += part
            cursor = len(lines[-1])
    return [line.rstrip() for line in lines]


def test_a_word_that_does_not_fit_begins_a_line() -> None:
    assert screen(["the qui", "ck bro", "wn fox"], 10) == ["the quick", "brown fox"]
    assert screen(["exactly te", "n"], 10) == ["exactly", "ten"]
    assert screen(["0123456 89 x"], 10) == ["0123456 89", "x"], "a line may be full"


def test_lines_of_the_answer_and_their_indents_stay() -> None:
    assert screen(["def f():\n", "    ret", "urn 1\n\n", "f()"], 14) == ["def f():", "    return 1", "", "f()"]


def test_a_word_wider_than_a_line_and_wide_characters_go_to_the_edge() -> None:
    assert screen(["a 0123456789"], 6) == ["a", "012345", "6789"]
    assert screen(["日本語日本語"], 7) == ["日本語", "日本語"]


def test_nothing_is_held_back() -> None:
    wrapper = Wrapper(lambda: 80)
    assert wrapper.feed("on and o") == "on and o"
    assert wrapper.feed("n") == "n"


@given(
    text=st.text(st.sampled_from("ab \n"), max_size=60),
    cuts=st.lists(st.integers(0, 60)),
    width=st.integers(4, 20),
)
@example(text="aaa bbbb", cuts=[5], width=5)
def test_only_spaces_change_and_no_word_that_fits_a_line_is_broken(text: str, cuts: list[int], width: int) -> None:
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = screen([text[a:b] for a, b in itertools.pairwise(ends)], width)
    assert shown == screen([text], width), "however the text is cut into pieces"
    assert max(map(len, shown)) <= width
    if all(len(word) <= width for word in text.split()):
        assert " ".join(shown).split() == text.split()
