"""TraceEnvironment: what OpenTelemetry's variables say of tracing, for a server that has no flag for it."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SAMPLER = "OTEL_TRACES_SAMPLER"
SAMPLER_ARGUMENT = "OTEL_TRACES_SAMPLER_ARG"

_PARENT_BASED = "parentbased_"
_RATES = {"always_on": 1.0, "always_off": 0.0}
_BY_RATIO = "traceidratio"
_DEFAULT_SAMPLER = f"{_PARENT_BASED}always_on"


class Sampling(NamedTuple):
    """The share of traces sampled, 0 to 1, and whether a caller's own decision goes before it."""

    rate: float = 1.0
    is_parent_respected: bool = True


class TraceEnvironment(NamedTuple):
    """Whether the environment names an endpoint for traces, whether it forbids them, and its sampler if any."""

    has_endpoint: bool = False
    is_off: bool = False
    sampling: Sampling | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "TraceEnvironment":
        """From OTEL_… variables. A sampler that is none is logged and passed over, as OpenTelemetry has it."""
        exporter = variables.get("OTEL_TRACES_EXPORTER", "").strip().lower()
        is_disabled = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        return cls(
            has_endpoint=any(variables.get(name, "").strip() for name in ENDPOINTS),
            is_off=is_disabled or exporter == "none",
            sampling=_sampling(variables),
        )


NOTHING_SAID = TraceEnvironment()


def _sampling(variables: Mapping[str, str]) -> Sampling | None:
    """None without a sampler."""
    name = variables.get(SAMPLER, "").strip().lower()
    if not name:
        return None
    is_parent_respected, kind = name.startswith(_PARENT_BASED), name.removeprefix(_PARENT_BASED)
    if kind == _BY_RATIO:
        return Sampling(_ratio(variables.get(SAMPLER_ARGUMENT, "").strip()), is_parent_respected)
    if kind not in _RATES:
        logger.warning("%s is %.64r, which is no sampler here; %s is used", SAMPLER, name, _DEFAULT_SAMPLER)
        return None
    return Sampling(_RATES[kind], is_parent_respected)


def _ratio(text: str) -> float:
    """All where the argument is missing or none."""
    if not text:
        return 1.0
    try:
        ratio = float(text.replace("_", "?"))  # Python reads 0_1 as 1, which nobody means
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        logger.warning("%s is %.64r and not a number from 0 to 1; everything is sampled", SAMPLER_ARGUMENT, text)
        return 1.0
    return ratio
