"""What a profile is asked to be, and what became of one process's part of it: plain values."""

import re
from typing import NamedTuple

from vllm_obs.engine.errors import RequestError

OPERATORS = "operators"
"""Of the workers: every operator of every step."""
SAMPLES = "samples"
"""Of every process: its stacks, many times a second."""
KINDS = (OPERATORS, SAMPLES)

MAX_STEPS = 2000
MAX_SECONDS = 600.0
MAX_SAMPLE_SECONDS = 60.0
MAX_RATE_HZ = 250.0
MAX_DELAY_STEPS = 1_000_000
OPTIONS = ("shapes", "stack", "memory", "flops", "uncompressed")
"""What an operators profile may record beside times, and that its trace is not to be compressed."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class ProfileOrder(NamedTuple):
    """One profile. Its files go into `directory` (absolute, exists). It ends by order or at the first bound met.

    `delay_steps` go by before the first step is recorded. `options` are of OPTIONS. Samples are taken `rate_hz`
    times a second, for a minute at most.
    """

    profile: str
    kind: str
    directory: str
    seconds: float
    steps: int
    delay_steps: int = 0
    options: tuple[str, ...] = ()
    rate_hz: float = 99.0


class CaptureEnd(NamedTuple):
    """One process's part is over and its files (names) are in the directory; `error` says why there are none.

    Moments are monotonic ns.
    """

    num_steps: int
    num_samples: int
    ended_at: int
    written_at: int
    files: list[str]
    error: str


def check_order(order: ProfileOrder) -> None:
    """RequestError for an order that is out of bounds, with the number and the limit."""
    if not is_profile_name(order.profile):
        raise RequestError("a profile's name has 1 to 64 letters, digits, dots, dashes or underscores", "profile")
    if order.kind not in KINDS:
        raise RequestError(f"kind must be one of {', '.join(KINDS)}", "kind")
    if not 0 < order.seconds <= MAX_SECONDS:
        raise RequestError(
            f"seconds is {order.seconds:g}; it must be above 0 and at most {MAX_SECONDS:g}", "seconds"
        )
    if order.kind == SAMPLES and order.seconds > MAX_SAMPLE_SECONDS:
        raise RequestError(
            f"seconds is {order.seconds:g}; of samples at most {MAX_SAMPLE_SECONDS:g} are taken", "seconds"
        )
    if not 1 <= order.rate_hz <= MAX_RATE_HZ:
        raise RequestError(f"rate_hz is {order.rate_hz:g}; it must be between 1 and {MAX_RATE_HZ:g}", "rate_hz")
    if not 1 <= order.steps <= MAX_STEPS:
        raise RequestError(f"steps is {order.steps}; it must be between 1 and {MAX_STEPS}", "steps")
    if not 0 <= order.delay_steps <= MAX_DELAY_STEPS:
        raise RequestError(f"delay_steps is {order.delay_steps}; the limit is {MAX_DELAY_STEPS}", "delay_steps")
    if not order.directory.startswith("/"):
        raise RequestError("a profile's directory must be an absolute path", "directory")
    if set(order.options) - set(OPTIONS):
        raise RequestError(f"options are of {', '.join(OPTIONS)}", "options")


def is_profile_name(name: str) -> bool:
    """Whether a profile may be called that; such a name is also one plain name of a directory."""
    return _NAME.fullmatch(name) is not None
