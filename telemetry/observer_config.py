"""ObserverConfig: what the Observer is told at its start, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.slo_targets import SloTargets, slo_targets

MAX_DETAIL_LEVEL = 3


class ObserverConfigError(ValueError):
    """The configuration names no run directory, or a value is out of its range."""


@dataclass(frozen=True)
class ObserverConfig:
    """Where the run is and what is to be shown of it.

    `inspect_port` 0 takes any free port; one that is taken gives way to a free one. `api_address` is the address
    the API server listens at. An engine that has work and does not move for `stall_timeout` seconds is stalled.
    `slo` is what is promised of each sequence, as the flag has it; `accounts` are the labels of the API keys.
    `facts` are further plain values the owner wants shown under `/inspect/config`.
    """

    run_dir: Path
    api_address: str = ""
    inspect_host: str = "127.0.0.1"
    inspect_port: int = 0
    model_name: str = ""
    served_model_names: tuple[str, ...] = ()
    max_model_len: int = 0
    otlp_endpoint: str = ""
    otlp_protocol: str = ""
    otlp_headers: Mapping[str, str] = field(default_factory=dict)
    otlp_insecure: bool = False
    disable_log_stats: bool = False
    enable_mfu_metrics: bool = False
    show_hidden_metrics: bool = False
    detail_level: int = MAX_DETAIL_LEVEL
    sample_rate: float = 1.0
    stall_timeout: float = 10.0
    slo: str = ""
    accounts: tuple[str, ...] = ()
    version: str = ""
    profiler_dir: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.inspect_port <= 65535:
            raise ObserverConfigError(f"inspect_port is {self.inspect_port}; a port is 0 to 65535")
        if not 0 <= self.detail_level <= MAX_DETAIL_LEVEL:
            raise ObserverConfigError(f"detail_level is {self.detail_level}; levels are 0 to {MAX_DETAIL_LEVEL}")
        if not self.stall_timeout > 0:
            raise ObserverConfigError(f"stall_timeout is {self.stall_timeout}; it must be above 0 seconds")
        if self.slo:
            self._check_slo()

    @property
    def slo_targets(self) -> SloTargets:
        """What is promised, nothing where `slo` is empty."""
        return slo_targets(self.slo) if self.slo else SloTargets()

    def _check_slo(self) -> None:
        try:
            slo_targets(self.slo)
        except ValueError as error:
            raise ObserverConfigError(f"slo: {error}") from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ObserverConfig":
        """The configuration in plain values; what is not known here is kept in `facts`."""
        if not values.get("run_dir"):
            raise ObserverConfigError("the configuration names no run_dir")
        known = {entry.name for entry in fields(cls)} - {"facts"}
        given = {name: value for name, value in values.items() if name in known and value is not None}
        given["run_dir"] = Path(given["run_dir"])
        for name in ("served_model_names", "accounts"):
            given[name] = tuple(given.get(name, ()))
        given["facts"] = {name: value for name, value in values.items() if name not in known}
        return cls(**given)

    def shown(self) -> dict[str, Any]:
        """All of it as plain values for people; the OTLP headers (they hold keys) by their names only."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        facts = values.pop("facts")
        values["run_dir"] = str(self.run_dir)
        values["served_model_names"] = list(self.served_model_names)
        values["accounts"] = list(self.accounts)
        values["otlp_headers"] = sorted(self.otlp_headers)
        return values | dict(facts)
