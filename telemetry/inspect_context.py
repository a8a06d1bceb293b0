"""InspectContext: what the inspector's routes answer from."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vllm_obs.telemetry.cache_trend import CacheTrend
from vllm_obs.telemetry.device_reader import DeviceReader
from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.incident_log import IncidentLog
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.inspect_events import EventHub
from vllm_obs.telemetry.memory_ledger import MemoryLedger
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.profile_control import ProfileControl
from vllm_obs.telemetry.recent_rates import RecentRates
from vllm_obs.telemetry.slo import Slo
from vllm_obs.telemetry.telemetry_control import TelemetryControl
from vllm_obs.telemetry.trend import Trend
from vllm_obs.telemetry.utilisation import Utilisation
from vllm_obs.telemetry.verdict import Verdict
from vllm_obs.telemetry.watchdog import Watchdog
from vllm_obs.telemetry.watchdog_log import StallLog

if TYPE_CHECKING:
    from vllm_obs.telemetry.stream_feeds import StreamFeeds


class QuantileSource(Protocol):
    """The quantiles of the run's latencies (`telemetry/quantiles.py`)."""

    def summary(self, window: str, now: int, engine: str | None = None) -> dict[str, Any]:
        """Each measure's summary over a window that ends now."""

    def summary_with(
        self, measure: str, seconds: Iterable[float], window: str, now: int, engine: str | None = None
    ) -> Any:
        """One measure's summary, with what is not over yet."""


async def _nothing() -> None:
    """Of a recording there is nothing to be looked at."""


@dataclass
class InspectContext:
    """`catch_up` drains what was recorded up to now; `render_metrics` makes the body and content type of /metrics
    for an Accept header; `export_counts` says what became of spans, `control` gives orders to the server."""

    observer: Observer
    config: ObserverConfig
    catch_up: Callable[[], Awaitable[None]]
    render_metrics: Callable[[str], tuple[bytes, str]]
    quantiles: QuantileSource
    export_counts: Callable[[], Mapping[str, int]]
    control: TelemetryControl
    profiles: ProfileControl
    stall_log: StallLog
    economics: Economics
    slo: Slo
    verdict: Verdict
    trend: Trend
    cache_trend: CacheTrend
    utilisation: Utilisation
    streams: "StreamFeeds"
    watchdog: Watchdog | None = None
    """None of a recording, where nobody can stand still any more."""
    hub: EventHub = field(default_factory=EventHub)
    rates: RecentRates = field(default_factory=RecentRates)
    memory: MemoryLedger = field(default_factory=MemoryLedger)
    refresh_memory: Callable[[], Awaitable[None]] = _nothing
    """Looks at the memory of every live process, without holding up the loop."""
    devices: DeviceReader | None = None
    """None of a recording: figures of GPUs are not recorded."""
    incidents: IncidentLog | None = None
    shelf: IncidentShelf | None = None
    """None of a recording that belongs to no incident's folder."""
