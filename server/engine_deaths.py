"""What an engine's death says: the words a client may be told, and whether a request can be at fault."""

import re

from vllm_obs.telemetry.memory_limits import MemoryReader, num_oom_kills

_END = re.compile(
    r"(?:EngineCore|Worker)_\w{1,32} (?:was killed by (?:SIG[A-Z0-9+]+|signal \d+)|exited with code \d+)"
    r"|(?:Node|Worker)_\w{1,32} was lost"
)
"""What `describe_exit` says of an engine or a worker: a title, and a signal or a number; and of another host."""
_FROM_OUTSIDE = re.compile(r"was killed by SIG(?:KILL|TERM|INT|HUP)$|was lost$")
"""Signals that somebody sent, or the kernel for lack of memory; a process does not get them for what it does. A
host is lost for its network or its agent."""


def told_cause(cause: str) -> str:
    """Whose end it was and how it ended, in words from a closed set; empty where it was no process's end.

    Of an engine that gave up because of a worker it is the worker's. Exception texts are left out.
    """
    ends = _END.findall(cause)
    return ends[-1] if ends else ""


def is_from_outside(cause: str) -> bool:
    """Whether a signal ended it that no request can bring about but by using up the memory."""
    return bool(_FROM_OUTSIDE.search(told_cause(cause)))


class OomKills:
    """Counts the processes that the kernel has killed for lack of memory where this one is."""

    def __init__(self, pid: int, reader: MemoryReader | None = None) -> None:
        self._groups = (reader or MemoryReader()).groups(pid)[:1]
        self._num_before = self._num()

    @property
    def have_risen(self) -> bool:
        """Whether there are more than when this was made."""
        return self._num() > self._num_before

    def _num(self) -> int:
        return sum(map(num_oom_kills, self._groups))
