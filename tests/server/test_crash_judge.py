"""Of what all API servers had open in a crash the one that stands out is named once, when all have told."""

import asyncio
from collections.abc import Sequence

import pytest
from in_loop import in_loop

from vllm_obs.engine.frontend.crash_suspects import MAX_OPEN, Suspect
from vllm_obs.server import crash_judge
from vllm_obs.server.crash_judge import CrashJudge

OLD, NEW, WAITING = Suspect(b"old", True, False), Suspect(b"new", True, True), Suspect(b"waiting", False, False)


async def blamed(*told: list[Suspect], messages: Sequence[tuple[int, list[Suspect]]] = ()) -> list[bytes]:
    """Whom it names after each server told these, or after these messages of the first two; of several engines."""
    found: list[bytes | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_judge, "SAME_CRASH_SECONDS", 0.01)
        judge = CrashJudge(found.append, len(told) or 2, has_several=True)
        for server, suspects in messages:
            judge.heard(server, suspects)
        for server, suspects in enumerate(told):
            for message in filter(None, [suspects]):
                judge.heard(server, message)
            judge.heard(server, [])
        assert found == [], "another engine may die with this one"
        await asyncio.sleep(0.1)
    assert len(found) == 1, "it answers once"
    return [digest for digest in found if digest is not None]


@in_loop
async def test_of_the_only_engine_it_judges_as_soon_as_all_have_told() -> None:
    found: list[bytes | None] = []
    judge = CrashJudge(found.append, 2, has_several=False)
    for culprit, others in ((OLD, []), (None, [OLD, OLD._replace(digest=b"more")])):
        judge.heard(0, [OLD])
        judge.heard(0, [])
        if others:
            judge.heard(1, others)
        assert found == []
        judge.heard(1, [])
        assert [found.pop()] == [culprit and culprit.digest]


@in_loop
async def test_of_the_only_engine_it_does_not_wait_for_ever_for_a_server_that_hangs() -> None:
    found: list[bytes | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_judge, "SAME_CRASH_SECONDS", 0.01)
        judge = CrashJudge(found.append, 2, has_several=False)
        judge.heard(0, [OLD])
        judge.heard(0, [])
        await asyncio.sleep(0.1)
    assert found == [None]


@in_loop
async def test_who_was_alone_in_one_server_may_not_have_been_in_all() -> None:
    assert await blamed([OLD], []) == [b"old"]
    assert await blamed([OLD], [OLD._replace(digest=b"another's")]) == []
    assert await blamed([OLD], [NEW, WAITING]) == [b"new"]


@in_loop
async def test_while_a_server_has_not_told_all_nobody_is_blamed() -> None:
    whole = [(0, [OLD]), (0, []), (1, [WAITING]), (1, [])]
    assert await blamed(messages=whole) == [b"old"]
    for number in (1, 2, 3):
        assert await blamed(messages=whole[:number]) == [], "the second server, or the rest of it, is missing"
    assert await blamed(messages=whole[2:]) == []


@in_loop
async def test_of_two_engines_that_die_together_both_must_have_been_told_of() -> None:
    first = [(0, [WAITING]), (0, []), (1, [])]
    assert await blamed(messages=[*first, (0, [NEW]), (0, [])]) == []
    assert await blamed(messages=[*first, (0, [NEW]), (0, []), (1, [])]) == [b"new"]


@in_loop
async def test_a_later_crash_is_judged_for_itself() -> None:
    found: list[bytes | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_judge, "SAME_CRASH_SECONDS", 0.01)
        judge = CrashJudge(found.append, 1, has_several=True)
        for suspect in (OLD, NEW):
            judge.heard(0, [suspect])
            judge.heard(0, [])
            await asyncio.sleep(0.1)
    assert found == [b"old", b"new"]


@in_loop
async def test_what_two_servers_had_of_one_request_is_put_together() -> None:
    assert await blamed([WAITING, OLD], [WAITING._replace(may_run=True, is_new=True)]) == [b"waiting"]


@in_loop
async def test_of_very_many_nobody_stands_out() -> None:
    many = [WAITING._replace(digest=bytes([number % 256, number // 256])) for number in range(2 * MAX_OPEN)]
    assert await blamed([NEW], many) == []
