"""The pages of a server that shows itself (`serve --dashboard`, `demo --dashboard`): a process beside it."""

import os
import socket
import threading
from dataclasses import asdict, dataclass

from vllm_obs.cli.listener import bind_or_free, bind_port, shown_host
from vllm_obs.cli.live_run import inspector_of_root
from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.child_main import Owner, run_child
from vllm_obs.engine.errors import ConfigError
from vllm_obs.telemetry.console import STDOUT, tell

MODULE = "vllm_obs.cli.dashboard_child"
TITLE = "Dashboard"
SERVING = "SERVING"
STOP_SECONDS = 3.0
DEFAULT_PORT = 8501


@dataclass(frozen=True)
class DashboardOptions:
    """Where the pages are; `port` None is 8501, or a free one where that is taken.

    `trace_url` is the address of a trace elsewhere, with {trace_id} in it.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    trace_url: str = ""

    def __post_init__(self) -> None:
        """ConfigError with the number and the limit."""
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise ConfigError(f"the dashboard's port {self.port} is not between 0 and 65535")
        if self.trace_url and "{trace_id}" not in self.trace_url:
            raise ConfigError(f"--trace-url {self.trace_url:.100} has no {{trace_id}} in it")
        if self.trace_url and not self.trace_url.startswith(("http://", "https://")):
            raise ConfigError(f"--trace-url {self.trace_url:.100} is not an http:// or https:// address")


def bind_pages(options: DashboardOptions, flag: str = "--dashboard-port") -> socket.socket:
    """The pages' socket. ConfigError where the port asked for cannot be had."""
    if options.port is not None:
        return bind_port(options.host, options.port, flag)
    return bind_or_free(options.host, DEFAULT_PORT)


def address_of(options: DashboardOptions, listener: socket.socket) -> str:
    """What people open."""
    return f"http://{shown_host(options.host)}:{listener.getsockname()[1]}/"


class DashboardChild:
    """The process that serves the pages. It ends with this one; that it ends alone does not matter to serving."""

    def __init__(self, options: DashboardOptions) -> None:
        self._lock = threading.Lock()
        self._address = ""
        self._is_due = False
        self._child: Child = spawn(MODULE, TITLE, {"options": asdict(options), "root_pid": os.getpid()})
        self._child.on_message(SERVING, self._serves)
        self._child.on_exit(self._ended)

    def tell_address(self) -> None:
        """The server is ready: print where the pages are, as soon as they are served."""
        with self._lock:
            self._is_due = True
            self._print()

    def _serves(self, address: str) -> None:
        with self._lock:
            self._address = address
            self._print()

    def _print(self) -> None:
        if self._is_due and self._address:
            STDOUT.say(f"Pages: {self._address}")

    def stop(self) -> None:
        """End it within seconds; idempotent."""
        self._child.stop(STOP_SECONDS)

    def _ended(self, cause: str) -> None:
        if not self._child.was_told:
            tell(f"the pages ended, serving goes on: {cause}; vllm-obs dashboard shows them again")


def serve_pages(owner: Owner) -> None:
    """The body of the process."""
    options = DashboardOptions(**owner.configuration["options"])
    root_pid = owner.configuration["root_pid"]
    with bind_pages(options) as listener:
        # Streamlit takes a second to load.
        from vllm_obs.dashboard.serve import Pages
        from vllm_obs.dashboard.source import Source

        pages = Pages(Source(lambda: inspector_of_root(root_pid).url), options.host, options.trace_url)
        owner.on_stop(pages.end)
        owner.say(SERVING, address_of(options, listener))
        pages.run(listener, is_beside=True)


if __name__ == "__main__":
    run_child(serve_pages)
