"""PoisonBook: which requests were open when an engine crashed, and which of them are not to crash another."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.sampling_params import SamplingParams

MAX_MARKS = 1024
MAX_OPEN = 1024
"""Open sequences that are looked at after a crash; where there were more, none of them stands out."""
KEPT_SECONDS = 600.0
NUM_CRASHES = 2


class OpenRequest(NamedTuple):
    """A sequence that was open when its engine died."""

    request_id: str
    token_ids: Sequence[int]
    params: SamplingParams
    num_output_tokens: int


class _Mark(NamedTuple):
    num_crashes: int
    is_refused: bool
    marked_at: float


class PoisonBook:
    """Knows requests by a digest of tokens and parameters, so that one that is sent again is known again.

    A crash is laid at the door of the only request that was open, or else of the only one that had no output yet.
    Where neither tells, whoever was open in two such crashes is refused. The oldest of MAX_MARKS goes first, and
    every one after KEPT_SECONDS.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: OrderedDict[bytes, _Mark] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def check(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        """RequestFailedError for a request that is refused. Before any crash this is one test."""
        if not self._marks:
            return
        self._forget_old()
        mark = self._marks.get(fingerprint(token_ids, params))
        if mark is not None and mark.is_refused:
            raise RequestFailedError("An engine crashed on this request; it is not run again.", "poison_request")

    def crashed(self, open_requests: Sequence[OpenRequest]) -> list[str]:
        """An engine crashed on its own with these open; the ids of those that are refused from now on.

        Takes milliseconds for long prompts: call it off the event loop, while nobody calls `check`.
        """
        self._forget_old()
        looked_at: dict[bytes, list[OpenRequest]] = {}
        for request in open_requests[-MAX_OPEN:]:
            looked_at.setdefault(fingerprint(request.token_ids, request.params), []).append(request)
        culprit = _culprit(looked_at) if len(open_requests) <= MAX_OPEN else None
        for digest in looked_at if culprit is None else (culprit,):
            self._mark(digest, is_culprit=digest == culprit)
        refused = [digest for digest in looked_at if digest in self._marks and self._marks[digest].is_refused]
        return [request.request_id for digest in refused for request in looked_at[digest]]

    def _mark(self, digest: bytes, is_culprit: bool) -> None:
        before = self._marks.pop(digest, None)
        num_crashes = 1 if before is None else before.num_crashes + 1
        is_refused = is_culprit or num_crashes >= NUM_CRASHES or (before is not None and before.is_refused)
        self._marks[digest] = _Mark(num_crashes, is_refused, self._clock())
        if len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)

    def _forget_old(self) -> None:
        begun_at = self._clock() - KEPT_SECONDS
        while self._marks and next(iter(self._marks.values())).marked_at < begun_at:
            self._marks.popitem(last=False)


def fingerprint(token_ids: Sequence[int], params: SamplingParams) -> bytes:
    """A digest of what makes the engine do what it does for a request; nothing can be read back from it."""
    digest = hashlib.sha256(np.asarray(token_ids, dtype=np.int64).tobytes())
    digest.update(repr(params).encode("utf-8", "backslashreplace"))
    return digest.digest()


def _culprit(looked_at: dict[bytes, list[OpenRequest]]) -> bytes | None:
    """Whom a crash must be due to, if to any request; None where that cannot be told."""
    if len(looked_at) == 1:
        return next(iter(looked_at))
    new = [
        digest
        for digest, requests in looked_at.items()
        if not all(request.num_output_tokens for request in requests)
    ]
    return new[0] if len(new) == 1 else None
