"""Writes to a descriptor that others have too, which never wait; how the others write stays as it is."""

import contextlib
import os
import select
import socket
import stat
from collections.abc import Callable, Iterator

MAX_PIECE_BYTES = select.PIPE_BUF
"""A pipe with room takes so many at once, and nobody else's bytes come in between."""

Write = Callable[[memoryview], int]
"""Gives how many bytes were taken. BlockingIOError where there is no room, OSError where nobody reads any more."""


@contextlib.contextmanager
def unwaiting(fd: int) -> Iterator[Write]:
    """How to write to what is open there, of no more than MAX_PIECE_BYTES at a time.

    O_NONBLOCK belongs to the open file, which stdout and stderr share with other processes: they would feel it. So
    a pipe or a terminal is opened once more, and a socket told with each send. What cannot be opened again (a
    terminal of another user, no descriptor left) is written to as it is: whoever has looked for room waits only
    where others use it up in that moment. To a file nobody waits.
    """
    mode = os.fstat(fd).st_mode
    with contextlib.ExitStack() as stack:
        if stat.S_ISSOCK(mode):
            ours = stack.enter_context(socket.socket(fileno=os.dup(fd)))
            yield lambda piece: ours.send(piece, socket.MSG_DONTWAIT)
            return
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            with contextlib.suppress(OSError):
                again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                stack.callback(os.close, again)
                fd = again
        yield lambda piece: os.write(fd, piece)
