"""The sampler's random words and noise."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagemill_kernels import philox
from pagemill_kernels.cpu import noise

# From the known-answer tests published with Random123: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

U64 = st.integers(0, 2**64 - 1)


@numba.njit
def _compiled_gumbel(words, out):  # type: ignore[no-untyped-def]
    for i in range(len(words)):
        out[i] = noise.gumbel(words[i])


@numba.njit
def _compiled_words(seed, position, group, choice):  # type: ignore[no-untyped-def]
    return noise.draw_words(seed, position, group, choice)


@numba.njit
def _compiled_philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    return noise.philox_words(c0, c1, c2, c3, k0, k1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    got = philox.philox4x32(*(tuple(torch.tensor(v) for v in part) for part in (counter, key)))  # type: ignore[arg-type]
    assert tuple(int(w) for w in got) == words
    assert tuple(int(w) for w in _compiled_philox(*(np.uint64(v) for v in (*counter, *key)))) == words


def test_first_words_of_the_counter_layout() -> None:
    # Golden: seed 2^63 + 5, position 1000, ids 8..11, choice 3, purpose 0, as Philox of that counter and key.
    seed, ids = _signed(2**63 + 5), torch.arange(8, 12)
    words = philox.draw_words(torch.tensor(seed), torch.tensor(1000), torch.tensor(3), ids)
    counter = tuple(torch.tensor(v) for v in (1000, 2, 3, 0))
    expected = philox.philox4x32(counter, (torch.tensor(5), torch.tensor(2**31)))  # type: ignore[arg-type]
    assert words.tolist() == [int(w) for w in expected]


@given(seed=U64, position=st.integers(0, 2**32 - 1), group=st.integers(0, 2**20), choice=st.integers(0, 2**20))
def test_words_are_the_same_in_numba(seed: int, position: int, group: int, choice: int) -> None:
    ids = torch.arange(4 * group, 4 * group + 4)
    want = philox.draw_words(torch.tensor(_signed(seed)), torch.tensor(position), torch.tensor(choice), ids)
    assert [int(w) for w in _compiled_words(_signed(seed), position, group, choice)] == want.tolist()


def _telling_words() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    edges = torch.cat((torch.arange(4096), (1 << 24) - 1 - torch.arange(4096), (1 << 23) + torch.arange(-64, 64)))
    powers = torch.tensor([(1 << s) + d for s in range(2, 24) for d in (-1, 0, 1)])
    root = philox.SQRT_HALF_25 // 2 + torch.arange(-64, 64)
    random = torch.randint(0, 1 << 24, (200_000,), generator=generator)
    return torch.cat((edges, powers, root, random)) << 8 | 0x5A


def test_noise_has_the_same_bits_in_numba() -> None:
    words = _telling_words()
    out = np.empty(len(words), np.float32)
    _compiled_gumbel(words.numpy(), out)
    want = philox.gumbel(words).view(torch.int32).numpy()
    assert (out.view(np.int32) == want).all()


def test_noise_is_gumbel_to_float32_precision() -> None:
    words = _telling_words()
    u = ((words >> 8).double() + 0.5) * 2.0**-24
    exact = -torch.log(-torch.log(u))
    error = (philox.gumbel(words).double() - exact).abs()
    assert float((error / exact.abs().clamp_min(1.0)).max()) < 3e-7


def test_noise_is_finite_and_bounded_at_both_ends() -> None:
    low, high = philox.gumbel(torch.tensor([0, 0xFFFFFFFF])).tolist()
    assert low == pytest.approx(-2.852, abs=1e-3)
    assert high == pytest.approx(17.3287, abs=1e-3)
