"""SpanBudget: how many spans a second may be made, so that tracing never costs more than was agreed."""

BURST_SECONDS = 4


class SpanBudget:
    """A bucket of tokens, a span each, that fills at `spans_per_second`; the caller says what time it is.

    Who asks names the share of the bucket that he leaves to others: steps give way first, then stages, requests
    last. `num_refused` counts the spans that were not made.
    """

    def __init__(self, spans_per_second: float) -> None:
        self._rate = spans_per_second / 1e9
        self._most = spans_per_second * BURST_SECONDS
        self._tokens = self._most
        self._filled_at = 0
        self.num_refused = 0

    def take(self, num_spans: int, now: int, left_to_others: float = 0.0) -> bool:
        """Whether `num_spans` may be made at `now` (monotonic ns)."""
        if now > self._filled_at:
            self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._rate)
            self._filled_at = now
        if self._tokens - num_spans < left_to_others * self._most:
            self.num_refused += num_spans
            return False
        self._tokens -= num_spans
        return True
