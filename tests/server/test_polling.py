"""Waiting ends with what is waited for, or with the time."""

from itertools import count

from in_loop import in_loop

from vllm_obs.server.polling import wait_until


@in_loop
async def test_it_waits_until_it_is_so() -> None:
    looks = count()
    await wait_until(lambda: next(looks) == 3, 20)
    assert next(looks) == 4


@in_loop
async def test_without_time_it_looks_once() -> None:
    looks = count()
    await wait_until(lambda: next(looks) < 0, 0)
    assert next(looks) == 1
