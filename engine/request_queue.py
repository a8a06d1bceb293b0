"""The queue of sequences that wait, ordered by rank, with removal from anywhere."""

from heapq import heapify, heappop, heappush

from vllm_obs.engine.request import Request

_MIN_DEAD_ENTRIES = 64


class RequestQueue:
    """A heap by `Request.rank`. First come, first served is the case where all priorities are equal, and a
    preempted sequence, having come earlier than all who wait, lands in front by itself.

    A removed sequence leaves a dead entry, skipped when it surfaces; the heap is rebuilt when most are dead.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._waiting: dict[tuple[int, int], Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: Request) -> None:
        """Queue a sequence at its rank."""
        heappush(self._heap, (request.rank, request))
        self._waiting[request.rank] = request

    def peek(self) -> Request:
        """The head. The queue must not be empty."""
        while self._heap[0][0] not in self._waiting:
            heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Request:
        """Take the head out. The queue must not be empty."""
        request = self.peek()
        heappop(self._heap)
        del self._waiting[request.rank]
        return request

    def remove(self, request: Request) -> None:
        """Take a sequence out from wherever it stands, O(1) on average."""
        del self._waiting[request.rank]
        if len(self._heap) > 2 * len(self._waiting) + _MIN_DEAD_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[0] in self._waiting]
            heapify(self._heap)
