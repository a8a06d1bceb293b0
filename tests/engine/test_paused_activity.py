"""A core that was told to leave work undone says so in its header, for whoever asks why it does not move."""

from core_bench import Bench
from fake_executor import tiny_config

from vllm_obs.engine.core_io import CoreAddress, Inbox, Signal
from vllm_obs.engine.core_proc import EngineCoreProc
from vllm_obs.engine.messages import RequestType
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import MemoryRecorder


class Header(MemoryRecorder):
    """Remembers what the process said it was doing."""

    def __init__(self) -> None:
        super().__init__()
        self.activities: list[Activity] = []

    def doing(self, activity: Activity) -> None:
        self.activities.append(activity)


def resting_activity(bench: Bench) -> Activity:
    """What the main loop says when it goes to sleep."""
    header, inbox = Header(), Inbox()
    loop = EngineCoreProc(bench.core, CoreAddress(0, 0, 1, []), inbox, header)
    inbox.put(Signal(RequestType.WAKEUP, ""))
    loop._drain_inbox()
    return header.activities[0]


def test_it_says_paused_and_not_waiting() -> None:
    bench = Bench(32, tiny_config(max_num_batched_tokens=64, max_num_seqs=16))
    assert resting_activity(bench) is Activity.WAITING
    bench.add("a", [1, 2, 3], max_tokens=9)
    bench.core.call_utility("pause_scheduler", ["keep"])
    assert resting_activity(bench) is Activity.PAUSED
    bench.core.call_utility("resume_scheduler", [])
    assert resting_activity(bench) is Activity.RECEIVING
