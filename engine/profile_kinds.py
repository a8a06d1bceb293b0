"""The kinds of profile that a process takes of itself, and how each is begun."""

from collections.abc import Mapping
from typing import NoReturn, Protocol, runtime_checkable

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.profile_captures import CaptureSite, MakeCapture
from vllm_obs.engine.profile_order import OPERATORS, SAMPLES, ProfileOrder
from vllm_obs.engine.stack_sampler import StackCapture

PROCESS_KINDS: dict[str, MakeCapture] = {SAMPLES: StackCapture}
"""Kind → what makes a process's part of it; API server, EngineCore and worker processes look here."""


@runtime_checkable
class ProfiledWorker(Protocol):
    """A worker that takes profiles of its own steps."""

    @property
    def profile_kinds(self) -> Mapping[str, MakeCapture]:
        """By kind."""


def worker_kinds(worker: object) -> dict[str, MakeCapture]:
    """The profiles of a worker's steps; one that has no operators refuses to tell of them."""
    return dict(worker.profile_kinds) if isinstance(worker, ProfiledWorker) else {OPERATORS: _refuse}


def _refuse(order: ProfileOrder, site: CaptureSite) -> NoReturn:
    raise RequestError(
        "a synthetic worker runs no model and has no operators to profile; --kind samples shows what it does"
    )
