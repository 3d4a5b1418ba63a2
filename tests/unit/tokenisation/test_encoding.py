"""Text to ids: as the library does it, without stopping other threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pagemill_common.tokenisation import ModelTokenizer, TokenizerError

TEXT = st.lists(st.one_of(st.sampled_from(["<s>", "</s>", "the", " ", "▁", "é"]), st.text(max_size=5))).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=TEXT.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)), special=st.booleans())
def test_any_text_gives_the_ids_of_the_librarys_plain_call(tokenizer: ModelTokenizer, text: str, special: bool) -> None:
    library = Tokenizer.from_str(tokenizer.bundle.tokenizer_json.decode())
    library.encode_special_tokens = not special
    assert tokenizer.encode(text, parse_special=special) == library.encode(text, add_special_tokens=False).ids


def test_other_threads_run_while_a_long_text_is_encoded(byte_tokenizer: ModelTokenizer) -> None:
    def encode() -> tuple[float, float]:
        began = time.monotonic()
        byte_tokenizer.encode("7" * (1 << 18))
        return began, time.monotonic()

    ticks = []
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(encode)
        while not encoding.done():
            time.sleep(0.001)
            ticks.append(time.monotonic())
    began, ended = encoding.result()
    moments = [began, *(tick for tick in ticks if began < tick < ended), ended]
    # A call that keeps the GIL leaves one gap as long as itself.
    assert max(later - earlier for earlier, later in pairwise(moments)) < (ended - began) / 2


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize("special", [True, False])
def test_half_a_surrogate_pair_is_no_text(tokenizer: ModelTokenizer, text: str, special: bool) -> None:
    with pytest.raises(TokenizerError, match="surrogate"):
        tokenizer.encode(text, parse_special=special)
