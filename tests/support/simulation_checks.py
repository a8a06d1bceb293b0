"""What must hold in the simulated core after every event, and when everything is over."""

from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.request import Request, RequestStatus


def check_core(core: EngineCore, max_num_seqs: int) -> None:
    """Block counts, queues and states; AssertionError or BlockCountError with what does not hold."""
    scheduler = core.scheduler
    scheduler.check()
    pool = scheduler.kv_cache.pool
    assert pool.num_free + pool.num_cached + pool.num_active == pool.num_blocks
    running = scheduler.running
    assert len(running) <= max_num_seqs, f"{len(running)} sequences run"
    assert [request.rank for request in running] == sorted(request.rank for request in running)
    assert all(request.status == RequestStatus.RUNNING for request in running)
    assert scheduler.num_live == len(running) + scheduler.num_waiting, "each lives in one place"
    held = {request.request_id for request in scheduler.live_requests() if request.block_ids}
    assert held <= {request.request_id for request in running}, "only who runs has blocks"
    _check_sharing(running, scheduler.kv_cache.block_size)


def _check_sharing(running: list[Request], block_size: int) -> None:
    """A block stands in several tables only at the same place, full, after the same tokens, of the same domain."""
    first_user: dict[int, tuple[int, Request]] = {}
    for request in running:
        assert len(set(request.block_ids)) == len(request.block_ids), f"{request.request_id} has a block twice"
        for place, block_id in enumerate(request.block_ids):
            if block_id not in first_user:
                first_user[block_id] = (place, request)
                continue
            other_place, other = first_user[block_id]
            end = (place + 1) * block_size
            shared = request.token_ids[:end]
            assert place == other_place, f"block {block_id} at two places"
            assert len(shared) == end, f"block {block_id} is shared and not full"
            assert shared == other.token_ids[:end], f"block {block_id} is shared by different tokens"
            assert request.cache_salt == other.cache_salt, f"block {block_id} is shared across domains"


def check_idle(core: EngineCore, row_ids: set[str]) -> None:
    """Nothing lives and nothing is held once everything has ended."""
    scheduler, pool = core.scheduler, core.scheduler.kv_cache.pool
    assert not core.has_work(), "there is work, and nobody does it"
    stats = scheduler.stats()
    assert (stats.num_running, scheduler.num_waiting, scheduler.num_live) == (0, 0, 0)
    assert scheduler.num_in_flight == 0
    assert (pool.num_active, pool.num_free + pool.num_cached) == (0, pool.num_blocks)
    assert row_ids == set(), f"the worker still holds {row_ids}"
    assert (len(core._detours), len(core._queue)) == (0, 0), "somebody is kept who has left"
