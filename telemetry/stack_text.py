"""ThreadStack: the threads in a text of stacks, as faulthandler or py-spy write it."""

import re
from typing import NamedTuple

MAX_THREADS = 256
_HEAD = re.compile(
    r'^(?:Current thread|Thread|Stack) (?:(?P<id>0x[0-9a-f]+|\d+))?[^:"]*:?\s*(?:"(?P<name>[^"]*)")?'
)


class ThreadStack(NamedTuple):
    """One thread: its name where that is known, and its frames, innermost first, as they were written."""

    thread: str
    name: str
    frames: list[str]


def threads_of(text: str) -> list[ThreadStack]:
    """The threads in a text of stacks, in its order, MAX_THREADS at most; none in a text that holds none."""
    threads: list[ThreadStack] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            if len(threads) == MAX_THREADS:
                break
            threads.append(ThreadStack(head["id"] or "", head["name"] or "", []))
        elif threads and line.startswith((" ", "\t")):
            threads[-1].frames.append(line.strip())
    return threads
