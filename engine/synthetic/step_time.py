"""StepTimeModel: how long a step takes on a device that is only made up."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vllm_obs.engine.errors import ConfigError

MAX_SECONDS = 3600.0
MAX_LAYERS = 1024


@dataclass(frozen=True)
class StepTimeModel:
    """A step's time is a sum: what every step costs, and what each token, row and token of context adds.

    The shape is that of a decoder on one device: reading the weights once a step, arithmetic for each token,
    sampling for each row, and reading the cache of each row's context. `num_layers` is in how many equal parts
    a step moves on.
    """

    base_seconds: float = 0.018
    seconds_per_token: float = 8e-5
    seconds_per_row: float = 5e-5
    seconds_per_context_token: float = 2e-7
    num_layers: int = 24

    def __post_init__(self) -> None:
        """ConfigError for a length that is negative, endless or absurd."""
        for field in fields(self):
            value = getattr(self, field.name)
            most = MAX_LAYERS if field.name == "num_layers" else MAX_SECONDS
            least = 1 if field.name == "num_layers" else 0
            if not math.isfinite(value) or not least <= value <= most:
                raise ConfigError(f"{field.name} is {value:g}; {least} to {most:g} may be")

    def seconds(self, num_tokens: int, num_rows: int, num_context_tokens: int) -> float:
        """The length of a step that computes these tokens for these rows, which have so much cached before it."""
        return (
            self.base_seconds
            + self.seconds_per_token * num_tokens
            + self.seconds_per_row * num_rows
            + self.seconds_per_context_token * num_context_tokens
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "StepTimeModel":
        """The model with these of its fields changed. ConfigError for a name that is none, or no number."""
        names = {field.name for field in fields(cls)}
        for name, value in values.items():
            if name not in names:
                raise ConfigError(f"{name:.64} is none of {', '.join(sorted(names))}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{name} is {value!r:.64}, not a number")
            if name == "num_layers" and not isinstance(value, int):
                raise ConfigError(f"num_layers is {value}, not a whole number")
        return cls(**values)
