"""SharedServer: one server of the default model for all files that only ask it, started for the first of them."""

from serving import Server

FLAGS = (
    *("--max-model-len", "2048", "--kv-cache-memory-bytes", "1G"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)

START_SECONDS = 240.0
"""Many tests hang on it, and none of them looks at how long it takes."""


class SharedServer:
    """A test may ask it whatever it likes, and hurts nobody: it neither kills, stops nor floods it."""

    def __init__(self, *flags: str) -> None:
        self._flags = (*FLAGS, *flags)
        self._server: Server | None = None

    def running(self) -> Server:
        """The server, ready."""
        if self._server is None or self._server.process.poll() is not None:
            self.close()
            self._server = Server(*self._flags)
            self._server.wait_ready(START_SECONDS)
        return self._server

    def end(self) -> None:
        """Have it end as asked; it has let nobody down and leaves no process behind."""
        if self._server is not None:
            try:
                assert self._server.stop() == 0, self._server.log.read_text()
                assert self._server.leftovers() == []
            finally:
                self.close()

    def close(self) -> None:
        """End what is left of it."""
        if self._server is not None:
            self._server.close()
            self._server = None
