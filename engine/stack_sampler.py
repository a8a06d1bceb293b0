"""StackSampler as a kind of profile: how a process of the engine or the server samples its own stacks."""

from vllm_obs.engine.profile_captures import CaptureSite
from vllm_obs.engine.profile_order import CaptureEnd, ProfileOrder
from vllm_obs.telemetry.sample_job import SampleJob, SampleOrder


class StackCapture:
    """One sampling of this process. It runs in a thread of its own, writes its file there, and records nothing."""

    def __init__(self, order: ProfileOrder, site: CaptureSite) -> None:
        self._job = SampleJob(SampleOrder(order.profile, order.directory, order.seconds, order.rate_hz), site.role)

    @property
    def end(self) -> CaptureEnd | None:
        """What became of it, once its file is written."""
        end = self._job.end
        return None if end is None else CaptureEnd(0, *end)

    def start(self) -> None:
        """Begin to sample."""
        self._job.start()

    def stop(self) -> None:
        """Sample no longer; what was taken is written."""
        self._job.stop()
