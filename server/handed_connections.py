"""HandedConnections: takes what the launcher accepted, on the event loop of an API server."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_A_TURN = 16
"""Connections taken before the loop does something else."""


class HandedConnections:
    """Reads one end of a pair of SOCK_SEQPACKET sockets; each message carries one connection.

    `num_taken` counts them, those that could not be used as well.
    """

    def __init__(self, handover: socket.socket, take: Callable[[socket.socket], None]) -> None:
        self.num_taken = 0
        self._handover = handover
        self._take = take
        self._loop = asyncio.get_running_loop()
        handover.setblocking(False)
        self._loop.add_reader(handover, self._read)

    def stop(self) -> None:
        """Take no more; who is on the way is closed."""
        if self._handover.fileno() >= 0:
            self._loop.remove_reader(self._handover)
            self._handover.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_A_TURN):
                if not self._read_one():
                    self.stop()  # the launcher is gone, and this process is about to be
                    return

    def _read_one(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._handover, 1, 1)
        if not message:
            return False
        self.num_taken += 1
        if not descriptors:
            logger.warning("a connection was lost: this process can open no more files")
            return True
        try:
            connection = socket.socket(fileno=descriptors[0])
        except OSError as error:
            os.close(descriptors[0])
            logger.warning("a connection was lost: %s", error.strerror)
            return True
        connection.set_inheritable(False)
        connection.setblocking(False)
        self._take(connection)
        return True
