"""ExemplarClock: makes the exemplar of an observation, where the request behind it is traced."""

from functools import lru_cache

from vllm_obs.telemetry.metric_series import Exemplar

_TRACE_ID = slice(3, 35)
_FLAGS = slice(53, 55)
_SAMPLED = 1


class ExemplarClock:
    """`wall_offset_ns` is added to a moment (monotonic ns) to give wall time, the same for the whole run."""

    def __init__(self, wall_offset_ns: int) -> None:
        self.wall_offset_ns = wall_offset_ns

    def exemplar(self, trace_parent: str, value: float, moment: int) -> Exemplar | None:
        """Of what was observed of a request at a moment; None unless it is sampled."""
        if not trace_parent or not is_sampled(trace_parent):
            return None
        return Exemplar(trace_parent[_TRACE_ID], value, (moment + self.wall_offset_ns) / 1e9)


@lru_cache(maxsize=64)  # it is asked for each histogram that a request is in
def is_sampled(trace_parent: str) -> bool:
    """Whether this W3C traceparent, as our own API server wrote it, has the sampled flag."""
    try:
        return bool(int(trace_parent[_FLAGS], 16) & _SAMPLED)
    except ValueError:
        return False
