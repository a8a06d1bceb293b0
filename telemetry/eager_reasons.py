"""EXECUTIONS: how a rank ran its part of a step, in a closed set of words."""

from typing import Final, get_args

from vllm_obs.telemetry.records import EagerReason

EXECUTIONS: Final[tuple[str, ...]] = ("graph", *(word for word in get_args(EagerReason) if word))
"""As a captured CUDA graph, or eagerly, by why."""


def execution_of(graph_size: int, eager_reason: str) -> str:
    """The word for a rank's part of a step."""
    return "graph" if graph_size else eager_reason
