"""How far another host's clock is: exact where both ways take as long, and never further off than it says."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.engine.nodes.clock_offset import NUM_PINGS_KEPT, ClockOffset, Exchange

WAY = st.integers(1, 10**9)


def exchange(offset: int, there: int, back: int, work: int = 0, sent_at: int = 10**12) -> Exchange:
    """A ping to a clock that is `offset` ahead."""
    received_at = sent_at + there + offset
    return Exchange(sent_at, received_at, received_at + work, sent_at + there + work + back)


def test_nothing_is_known_before_the_first_ping() -> None:
    clock = ClockOffset()
    assert (clock.is_known, clock.offset_ns, clock.error_ns) == (False, 0, 0)


def test_the_offset_is_exact_where_both_ways_take_as_long() -> None:
    clock = ClockOffset()
    clock.add(exchange(offset=-123_456_789_000, there=40_000, back=40_000, work=7_000))
    assert (clock.is_known, clock.offset_ns, clock.error_ns) == (True, -123_456_789_000, 40_000)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(WAY, WAY, WAY), min_size=1, max_size=50))
def test_it_is_never_further_off_than_half_the_fastest_round_trip(
    offset: int, pings: list[tuple[int, int, int]]
) -> None:
    clock = ClockOffset()
    for there, back, work in pings:
        clock.add(exchange(offset, there, back, work))
    assert abs(clock.offset_ns - offset) <= clock.error_ns + 1
    assert clock.error_ns == min(there + back for there, back, _ in pings[-NUM_PINGS_KEPT:]) // 2


def test_a_clock_that_drifts_is_followed() -> None:
    clock = ClockOffset()
    clock.add(exchange(offset=0, there=1, back=1))
    for _ in range(NUM_PINGS_KEPT):
        clock.add(exchange(offset=5_000, there=100, back=100))
    assert clock.offset_ns == 5_000


def test_moments_that_cannot_be_are_left_out() -> None:
    clock = ClockOffset()
    clock.add(Exchange(sent_at=100, received_at=0, answered_at=500, returned_at=200))
    assert not clock.is_known
