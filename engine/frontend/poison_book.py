"""PoisonBook: which requests were open when an engine crashed, and which of them are not to crash another."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.crash_suspects import MAX_OPEN, SAME_CRASH_SECONDS, Suspect, standing_out
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.sampling_params import SamplingParams

MAX_MARKS = 1024
"""Of each kind: the suspects of a crash never push out one that stood out, or was open in two."""
KEPT_SECONDS = 600.0
REST_SECONDS = 30.0
"""How long one that stood out in a single crash is refused, from when it first comes again."""
NUM_CRASHES = 2

_WELL = (FinishReason.STOP.label, FinishReason.LENGTH.label)


class OpenRequest(NamedTuple):
    """A sequence that was open when its engine died; `may_run` is False where it still waited to be run."""

    request_id: str
    token_ids: Sequence[int]
    params: SamplingParams
    num_output_tokens: int
    may_run: bool = True


class _Mark(NamedTuple):
    num_crashes: int
    marked_at: float
    came_again_at: float | None = None


class PoisonBook:
    """Knows requests by a digest of tokens and parameters, so that one that is sent again is known again.

    Whoever was open in two crashes is refused. One that stood out in the first is refused for REST_SECONDS only:
    that ends what clients repeat by themselves, and it may have been there by chance. It stands out as the only
    one that may have been running, or else as the only one of those without output. One that ended well since is
    no longer known (`absolve`), and nobody is after KEPT_SECONDS. The last MAX_MARKS of each kind are kept.

    Where it is `shared` with other API servers of the same engine, which know of requests that this one does not,
    nobody stands out by itself; `on_crash` is called with those open here, for `heard` there and for who knows
    what all had, and tells by `blame` who stands out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.shared = False
        self.on_crash: Callable[[list[Suspect]], None] = lambda suspects: None
        self._suspects: OrderedDict[bytes, _Mark] = OrderedDict()
        self._refused: OrderedDict[bytes, _Mark] = OrderedDict()

    def __len__(self) -> int:
        return len(self._suspects) + len(self._refused)

    def check(self, digest: bytes) -> bool:
        """Whether the request was open when an engine crashed; RequestFailedError for one that is refused."""
        self._forget_old()
        mark = self._refused.get(digest)
        if mark is None:
            return digest in self._suspects
        now = self._clock()
        if mark.came_again_at is None:
            mark = self._refused[digest] = mark._replace(came_again_at=now)
        if mark.num_crashes >= NUM_CRASHES or now < (mark.came_again_at or 0.0) + REST_SECONDS:
            raise RequestFailedError("An engine crashed on this request; it is not run again.", "poison_request")
        return True

    def absolve(self, digest: bytes) -> None:
        """Such a request has ended well: no engine crashes on it."""
        self._suspects.pop(digest, None)
        self._refused.pop(digest, None)

    def crashed(self, open_requests: Sequence[OpenRequest], digests: Sequence[bytes] = ()) -> list[str]:
        """An engine crashed on its own with these open; the ids of those that are refused from now on.

        `digests` are their `fingerprints`, which take milliseconds for long prompts, where they are made already.
        """
        self._forget_old()
        looked_at: dict[bytes, list[OpenRequest]] = {}
        digests = digests or fingerprints(open_requests)
        for digest, request in zip(digests, open_requests[-MAX_OPEN:], strict=True):
            looked_at.setdefault(digest, []).append(request)
        suspects = [_suspect(digest, requests) for digest, requests in looked_at.items()]
        are_all = len(open_requests) <= MAX_OPEN
        culprit = standing_out(suspects) if are_all and not self.shared else None
        for digest in looked_at:
            self._mark(digest, is_culprit=digest == culprit)
        # Where there were others, nobody of these is to stand out elsewhere either.
        self.on_crash(suspects if are_all else [Suspect(each.digest, True, True) for each in suspects])
        refused = [digest for digest in looked_at if digest in self._refused]
        return [request.request_id for digest in refused for request in looked_at[digest]]

    def heard(self, digests: Sequence[bytes]) -> None:
        """These were open in another API server when an engine crashed."""
        self._forget_old()
        for digest in digests:
            self._mark(digest, is_culprit=False)

    def blame(self, digest: bytes) -> None:
        """Of all that were open anywhere in the last crash this one stands out."""
        mark = self._suspects.pop(digest, None)
        if mark is not None:
            self._refused[digest] = mark
            if len(self._refused) > MAX_MARKS:
                self._refused.popitem(last=False)

    def _mark(self, digest: bytes, is_culprit: bool) -> None:
        known = self._refused.get(digest) or self._suspects.get(digest)
        if self.shared and known is not None and self._clock() - known.marked_at < SAME_CRASH_SECONDS:
            return
        before = self._refused.pop(digest, None) or self._suspects.pop(digest, None)
        num_crashes = 1 if before is None else before.num_crashes + 1
        marks = self._refused if is_culprit or num_crashes >= NUM_CRASHES else self._suspects
        marks[digest] = _Mark(num_crashes, self._clock())
        if len(marks) > MAX_MARKS:
            marks.popitem(last=False)

    def _forget_old(self) -> None:
        begun_at = self._clock() - KEPT_SECONDS
        for marks in (self._suspects, self._refused):
            while marks and next(iter(marks.values())).marked_at < begun_at:
                marks.popitem(last=False)


class SecondTry:
    """Stands before the sink of a request that is run though it was open when an engine crashed.

    Once each of its sequences has ended with `stop` or `length` it is absolved.
    """

    def __init__(
        self, book: PoisonBook, digest: bytes, num_sequences: int, sink: Callable[[SequenceDelta], None]
    ) -> None:
        self._book = book
        self._digest = digest
        self._num_left = num_sequences
        self._sink = sink

    def put(self, delta: SequenceDelta) -> None:
        """Pass a delta on; one that ends its sequence otherwise leaves the request marked."""
        self._sink(delta)
        if delta.finish_reason in _WELL:
            self._num_left -= 1
            if self._num_left == 0:
                self._book.absolve(self._digest)


def fingerprint(token_ids: Sequence[int], params: SamplingParams) -> bytes:
    """A digest of what makes the engine do what it does for a request; nothing can be read back from it."""
    digest = hashlib.sha256(np.asarray(token_ids, dtype=np.int64).tobytes())
    digest.update(repr(params).encode("utf-8", "backslashreplace"))
    return digest.digest()


def fingerprints(open_requests: Sequence[OpenRequest]) -> list[bytes]:
    """Of those that are looked at after a crash."""
    return [fingerprint(request.token_ids, request.params) for request in open_requests[-MAX_OPEN:]]


def _suspect(digest: bytes, requests: Sequence[OpenRequest]) -> Suspect:
    running = [one for one in requests if one.may_run]
    return Suspect(digest, bool(running), any(not one.num_output_tokens for one in running))
