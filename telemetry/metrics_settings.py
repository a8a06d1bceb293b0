"""MetricsSettings: what the metrics are told at their start."""

import time
from dataclasses import dataclass, field

from vllm_obs.telemetry.catalogue_row import Metric
from vllm_obs.telemetry.metric_store import DEFAULT_MAX_MODEL_LEN


def wall_offset_now() -> int:
    """What to add to a moment (monotonic ns) to get wall time (ns)."""
    return time.time_ns() - time.monotonic_ns()


@dataclass(frozen=True)
class MetricsSettings:
    """`model_name` and `max_model_len` stand in until an engine has described itself.

    `root_pid` is the process that `process_…` is about; 0 in a replay, where no process lives.
    """

    model_name: str = ""
    max_model_len: int = DEFAULT_MAX_MODEL_LEN
    version: str = ""
    root_pid: int = 0
    enable_mfu_metrics: bool = False
    show_hidden_metrics: bool = False
    disable_log_stats: bool = False
    wall_offset_ns: int = field(default_factory=wall_offset_now)

    def shows(self, metric: Metric) -> bool:
        """Whether a metric is exposed."""
        if metric.needs_stats and self.disable_log_stats:
            return False
        flags = {
            "--enable-mfu-metrics": self.enable_mfu_metrics,
            "--show-hidden-metrics-for-version": self.show_hidden_metrics,
        }
        return flags.get(metric.when, True)
