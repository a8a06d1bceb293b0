"""Pages: the dashboard's one uvicorn over a bound socket, until it is told to end."""

import contextlib
import logging
import signal
import socket
from collections.abc import Iterator, Sequence

import uvicorn

from vllm_obs.dashboard.app import Starting, build_app, nothing_to_start
from vllm_obs.dashboard.source import Source

CLOSE_SECONDS = 2


class _Server(uvicorn.Server):
    is_beside = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            if self.is_beside:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            yield


class Pages:
    """The pages over one source, or several servers'; one in a process. `start` begins what the source needs."""

    def __init__(
        self,
        source: Source,
        host: str,
        trace_url: str = "",
        start: Starting = nothing_to_start,
        others: Sequence[Source] = (),
    ) -> None:
        config = uvicorn.Config(
            build_app(source, host, trace_url, start, others),
            # None: Streamlit would else bring back a line for each request.
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            server_header=False,
            ws="websockets-sansio",
        )
        self._server = _Server(config)

    def run(self, listener: socket.socket, is_beside: bool = False) -> None:
        """Serve until SIGTERM or `end`, or SIGINT, but not beside a server: a terminal sends that to all of them,
        and the server tells its pages when it is over.
        """
        self._server.is_beside = is_beside
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # uvicorn obeys them first and raises them again at its end, when there is nothing left to be ended.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        # Connections have it from who listens: without it the port stays in use for a minute after their end.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.run(sockets=[listener])

    def end(self) -> None:
        """Let `run` return; from any thread."""
        self._server.should_exit = True
