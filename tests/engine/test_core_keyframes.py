"""Keyframes go round every block and every live sequence, and stay small."""

from core_bench import Bench
from fake_executor import tiny_config

from vllm_obs.engine.core_keyframes import (
    BLOCKS_A_TURN,
    REQUESTS_A_TURN,
    TABLE_BLOCKS_A_TURN,
    TURN_STEPS,
    Keyframes,
)
from vllm_obs.telemetry.records import BlocksKeyframe, RequestKeyframe


def bench_of(num_blocks: int) -> Bench:
    return Bench(num_blocks, tiny_config(max_num_batched_tokens=64, max_num_seqs=16))


def turn_of(keyframes: Keyframes, bench: Bench) -> list[BlocksKeyframe | RequestKeyframe]:
    """What so many steps tell as have one turn."""
    steps = [list(keyframes.after(step, bench.core.scheduler)) for step in range(TURN_STEPS)]
    assert not any(steps[1:])
    return steps[0]


def round_of(bench: Bench, num_turns: int) -> tuple[list[BlocksKeyframe], list[list[RequestKeyframe]]]:
    keyframes = Keyframes()
    blocks: list[BlocksKeyframe] = []
    requests: list[list[RequestKeyframe]] = []
    for _ in range(num_turns):
        first, *rest = turn_of(keyframes, bench)
        assert isinstance(first, BlocksKeyframe)
        blocks.append(first)
        requests.append([keyframe for keyframe in rest if isinstance(keyframe, RequestKeyframe)])
    return blocks, requests


def test_a_pass_over_4096_blocks_takes_64_steps() -> None:
    blocks, _ = round_of(bench_of(4096), 64 // TURN_STEPS + 1)
    assert [keyframe.first_block for keyframe in blocks] == [*range(0, 4096, BLOCKS_A_TURN), 0]
    assert all(len(keyframe.reference_counts) == len(keyframe.hashes) == BLOCKS_A_TURN for keyframe in blocks)


def test_a_pool_that_is_no_multiple_ends_with_a_short_slice() -> None:
    blocks, _ = round_of(bench_of(BLOCKS_A_TURN + 3), 3)
    assert [(keyframe.first_block, len(keyframe.hashes)) for keyframe in blocks] == [
        (0, BLOCKS_A_TURN),
        (BLOCKS_A_TURN, 3),
        (0, BLOCKS_A_TURN),
    ]


def test_blocks_are_told_with_their_references_and_short_hashes() -> None:
    bench = bench_of(32)
    for request_id in "ab":
        bench.add(request_id, [1, 2, 3, 4, 5, 6], max_tokens=9)
        bench.step()
    (keyframe,), _ = round_of(bench, 1)
    assert keyframe.reference_counts[:4] == [2, 1, 1, 0]
    assert [len(block_hash) for block_hash in keyframe.hashes[:4]] == [8, 0, 0, 0]


def test_every_live_sequence_has_its_turn() -> None:
    bench = bench_of(64)
    names = [f"r{number}" for number in range(REQUESTS_A_TURN + 2)]
    for name in names[:-1]:
        bench.add(name, [1, 2, 3], max_tokens=9)
    bench.step()
    bench.add(names[-1], [1, 2, 3], max_tokens=9)
    _, requests = round_of(bench, 4)
    assert [[keyframe.request_id for keyframe in each] for each in requests] == [
        names[:REQUESTS_A_TURN],
        names[REQUESTS_A_TURN:],
        names[:REQUESTS_A_TURN],
        names[REQUESTS_A_TURN:],
    ]
    assert requests[0][0] == RequestKeyframe(0, "r0", True, [0], 3, 3, 1)
    assert requests[1][1] == RequestKeyframe(0, names[-1], False, [], 0, 3, 0)


def test_one_sequence_is_told_once_a_turn() -> None:
    bench = bench_of(32)
    bench.add("a", [1, 2, 3], max_tokens=9)
    _, requests = round_of(bench, 2)
    assert [len(each) for each in requests] == [1, 1]


def test_those_that_ended_meanwhile_are_passed_over() -> None:
    bench, keyframes = bench_of(32), Keyframes()
    names = [f"r{number}" for number in range(REQUESTS_A_TURN + 2)]
    for name in names:
        bench.add(name, [1, 2, 3], max_tokens=9)
    turn_of(keyframes, bench)
    bench.abort(names[-2])
    (_, keyframe) = turn_of(keyframes, bench)
    assert isinstance(keyframe, RequestKeyframe)
    assert keyframe.request_id == names[-1]


def test_after_a_long_table_the_others_wait() -> None:
    bench, keyframes = bench_of(32), Keyframes()
    for request_id in "ab":
        bench.add(request_id, [1, 2, 3], max_tokens=9)
    bench.step()
    request = bench.core.scheduler.find("a")
    assert request is not None
    table = request.block_ids
    request.block_ids = [0] * (2 * TABLE_BLOCKS_A_TURN + 1)
    told = [[type(each) for each in turn_of(keyframes, bench)] for _ in range(3)]
    request.block_ids = table
    assert [kinds.count(RequestKeyframe) for kinds in told] == [1, 0, 1]
