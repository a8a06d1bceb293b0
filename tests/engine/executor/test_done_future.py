"""The future of a call that ran: its outcome is there at once, and an error is kept for who asks."""

import pytest

from vllm_obs.engine.executor.done_future import DoneFuture


def fail() -> int:
    raise ValueError("planted")


def test_what_was_returned_is_the_result() -> None:
    future = DoneFuture(lambda: 3)
    assert (future.done(), future.result(0), future.exception()) == (True, 3, None)
    assert repr(future) == "<DoneFuture 3>"


def test_what_was_raised_is_raised_to_who_asks() -> None:
    future = DoneFuture(fail)
    assert future.done()
    with pytest.raises(ValueError, match="planted"):
        future.result()
    assert isinstance(future.exception(), ValueError)


def test_a_callback_is_called_at_once() -> None:
    called: list[object] = []
    future = DoneFuture(lambda: 3)
    future.add_done_callback(called.append)
    assert called == [future]
