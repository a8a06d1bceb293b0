"""Trace parents are read as W3C wants it, and derived ids are the same wherever they are derived."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.telemetry.trace_ids import NO_SPAN, TraceParent, new_trace_id, parse_traceparent, span_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = TraceParent(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", PARENT),
        (f"00-{TRACE}-{SPAN}-00", PARENT._replace(is_sampled=False)),
        (f"00-{TRACE}-{SPAN}-03", PARENT),
        (f"00-{TRACE}-{SPAN}-02", PARENT._replace(is_sampled=False)),
        (f" 00-{TRACE}-{SPAN}-01\t", PARENT),
        (f"01-{TRACE}-{SPAN}-01", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-what-will-be", PARENT),
    ],
)
def test_a_wellformed_parent_is_read(header: str, parent: TraceParent) -> None:
    assert parse_traceparent(header.encode()) == parent


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"0x-{TRACE}-{SPAN}-01",
    ],
)
def test_a_malformed_parent_is_ignored(header: str) -> None:
    assert parse_traceparent(header.encode()) is None


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reading(header: bytes) -> None:
    parse_traceparent(header)


def test_a_parent_is_written_as_it_was_read() -> None:
    assert str(PARENT) == f"00-{TRACE}-{SPAN}-01"
    assert str(TraceParent(1, NO_SPAN, False)) == f"00-{'0' * 31}1-{'0' * 16}-00"
    assert PARENT.trace_hex == TRACE


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_can_be_read(trace: int, span: int, is_sampled: bool) -> None:
    parent = TraceParent(trace, span, is_sampled)
    assert parse_traceparent(str(parent).encode()) == parent


def test_new_traces_differ() -> None:
    assert len({new_trace_id() for _ in range(100)}) == 100


def test_a_span_id_depends_on_all_three_names_and_on_nothing_else() -> None:
    names = [
        ("run", "http", "1"),
        ("run", "http", "2"),
        ("run", "step", "1"),
        ("other", "http", "1"),
        ("runh", "ttp", "1"),
    ]
    ids = [span_id(*name) for name in names]
    assert len(set(ids)) == len(names)
    assert all(0 < each < 2**64 for each in ids)
    assert span_id("run", "step", 1) == span_id("run", "step", "1") == 0xCDE3CCE6686DAEBD
