"""What has ended here is told to the core, and counts in the queue until then."""

import asyncio

import pytest
from scripted_client import ScriptedAsyncClient

from vllm_obs.engine.frontend.abort_sender import AbortSender
from vllm_obs.engine.frontend.front_queue import FrontQueue
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.queue_bound import QueueLimits

LIMITS = QueueLimits(
    max_num_reqs=2,
    max_num_tokens=None,
    max_num_seqs=1,
    max_num_batched_tokens=100,
    max_num_mixed_prefill_tokens=100,
    is_chunked=True,
    block_size=10,
)


def test_it_counts_until_the_core_was_told_even_when_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = ScriptedAsyncClient()
        queue = FrontQueue(LIMITS, lambda: 0)
        queue.attach(1000)
        queue.admit(["a", "b"], 5, is_held=False)
        aborts = AbortSender(client, queue)
        aborts.send([], FinishReason.STOP)
        aborts.send(["a"], FinishReason.STOP)
        assert len(queue) == 2
        await aborts.wait(5)
        assert (client.aborts, len(queue)) == ([(["a"], FinishReason.STOP)], 1)
        client.dead_cause = "gone"
        aborts.send(["b"], FinishReason.ABORT)
        await aborts.wait(5)
        assert len(queue) == 0
        await aborts.wait(5)

    asyncio.run(run())
    assert caplog.messages == ["An abort was not sent: gone"]
