"""How many KV blocks there are, as a decision over plain numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_replica.runner import KvPlan, SettingError, plan_kv
from pagemill_replica.runner.memory import readable

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _plan(
    available: int,
    requested: int | None = None,
    *,
    bytes_per_block: int = MIB,
    max_context: int = 2048,
    block_size: int = 16,
    max_running: int = 256,
) -> KvPlan:
    return plan_kv(available, requested, bytes_per_block, max_context, block_size, max_running)


def test_the_default_is_a_quarter_of_what_is_available() -> None:
    assert _plan(2 * GIB).kv_bytes == GIB // 2
    # Less than a whole block is left over.
    assert _plan(2 * GIB + 7).num_blocks == 512
    assert _plan(2 * GIB + 4 * MIB).num_blocks == 513


def test_the_default_is_no_more_than_four_gib() -> None:
    assert _plan(64 * GIB).kv_bytes == 4 * GIB


def test_the_default_is_no_more_than_every_running_request_can_use() -> None:
    assert _plan(64 * GIB, max_running=3).num_blocks == 3 * 128
    # A context that ends inside a block fills one more.
    assert _plan(64 * GIB, max_running=3, max_context=2049).num_blocks == 3 * 129


def test_bytes_asked_for_are_taken_to_whole_blocks() -> None:
    plan = _plan(2 * GIB, 10 * MIB + 5)
    assert (plan.num_blocks, plan.kv_bytes, plan.tokens) == (10, 10 * MIB, 160)


def test_bytes_asked_for_may_be_all_that_is_left_and_no_more() -> None:
    assert _plan(2 * GIB, 2 * GIB).kv_bytes == 2 * GIB
    with pytest.raises(SettingError) as error:
        _plan(2 * GIB, 2 * GIB + 1)
    assert error.value.flag == "--kv-memory"
    assert "2.0 GiB" in error.value.reason
    assert "ask for less" in error.value.reason


def test_bytes_asked_for_may_exceed_what_running_requests_use() -> None:
    assert _plan(64 * GIB, 8 * GIB, max_running=1).kv_bytes == 8 * GIB


def test_bytes_that_hold_no_block_are_an_error_that_names_both_numbers() -> None:
    with pytest.raises(SettingError, match=r"--kv-memory: 1\.0 KiB hold no block of 16 tokens \(1\.0 MiB\)"):
        _plan(GIB, KIB)


def test_one_block_is_enough_where_it_is_asked_for() -> None:
    plan = _plan(GIB, MIB)
    assert (plan.num_blocks, plan.max_request_tokens) == (1, 16)


def test_too_little_memory_is_an_error_that_names_the_numbers_and_what_to_do() -> None:
    # 1024 tokens are the least that is chosen unasked: 64 blocks of 1 MiB, four times which must be left.
    assert _plan(256 * MIB).num_blocks == 64
    with pytest.raises(SettingError) as error:
        _plan(256 * MIB - 1)
    assert error.value.flag == "--kv-memory"
    for part in ("256.0 MiB", "64 blocks of 1.0 MiB", "choose a smaller model", "set --kv-memory"):
        assert part in error.value.reason


def test_a_short_context_is_the_least_that_is_chosen() -> None:
    assert _plan(28 * MIB, max_context=100).num_blocks == 7
    with pytest.raises(SettingError, match="7 blocks"):
        _plan(28 * MIB - 1, max_context=100)


def test_nothing_left_is_the_same_error() -> None:
    with pytest.raises(SettingError, match="0 B of memory are left"):
        _plan(0)


def test_the_largest_request_is_the_smaller_of_context_and_pool() -> None:
    assert KvPlan(num_blocks=10, block_size=16, kv_bytes=1, max_context=200).max_request_tokens == 160
    assert KvPlan(num_blocks=10, block_size=16, kv_bytes=1, max_context=100).max_request_tokens == 100


def test_requests_of_full_length_are_told_with_their_fraction() -> None:
    assert KvPlan(num_blocks=10, block_size=16, kv_bytes=1, max_context=64).full_length_requests == 2.5


@settings(deadline=None)
@given(
    available=st.integers(0, 64 * GIB),
    requested=st.none() | st.integers(1, 64 * GIB),
    bytes_per_block=st.integers(1, 64 * MIB),
    max_context=st.integers(1, 200_000),
    block_size=st.integers(1, 256),
    max_running=st.integers(1, 4096),
)
def test_a_plan_fits_the_memory_or_is_refused(
    available: int,
    requested: int | None,
    bytes_per_block: int,
    max_context: int,
    block_size: int,
    max_running: int,
) -> None:
    try:
        plan = plan_kv(available, requested, bytes_per_block, max_context, block_size, max_running)
    except SettingError:
        return
    assert plan.num_blocks >= 1
    assert plan.kv_bytes == plan.num_blocks * bytes_per_block <= available
    if requested is not None:
        assert requested - bytes_per_block < plan.kv_bytes <= requested
    else:
        assert plan.max_request_tokens >= min(max_context, 1024)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * MIB // 2, "1.5 MiB"), (5 * 1024 * GIB, "5120.0 GiB")],
)
def test_bytes_for_people(amount: int, text: str) -> None:
    assert readable(amount) == text
