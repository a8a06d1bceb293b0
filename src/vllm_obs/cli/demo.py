"""`vllm-obs demo`: the whole stack alive without a model, under a load that changes its regime by itself."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from vllm_obs.cli.dashboard_child import DashboardChild, DashboardOptions
from vllm_obs.cli.demo_options import DemoOptions, demo_options
from vllm_obs.cli.demo_ranks import resume_ranks
from vllm_obs.cli.listener import bind_or_free, bind_port
from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.synthetic.regimes import SYNTHETIC_LIMITS
from vllm_obs.server.config import ServerConfig

LOAD_MODULE = "vllm_obs.cli.demo_load"
LOAD_TITLE = "DemoLoad"
PROCESS_TITLE = "vllm-obs::APIServer"
LAUNCHER_TITLE = "vllm-obs::Launcher"
EXIT_LOAD_FAILED = 70
DEFAULT_PORT = 8000
STALL_TIMEOUT_SECONDS = 3.0
"""Less than the stalls of the regimes last, so that they are noticed."""
SHUTDOWN_SECONDS = 3.0
LOAD_STOP_SECONDS = 2.0
SIGNALS_SECONDS = 60.0
"""How long the server may take to listen for signals, which takes it a second."""
SIGNALS_POLL_SECONDS = 0.05

_EXIT_CUT_OFF = 1
"""The server's exit code where requests were cut off; those of a demo are its own."""


def main(argv: list[str]) -> int:
    """Run until told to stop; the exit code of the process."""
    started_at = time.monotonic_ns()
    options = demo_options(argv)
    _set_title(options)
    with bind_demo_port(options) as listener:
        options = replace(options, port=listener.getsockname()[1])
        config = engine_args(options).create_engine_config()
        print(greeting(options), flush=True)
        load = DemoLoad(options)
        pages = DashboardChild(pages_options(options)) if options.dashboard else None
        try:
            tell_pages = pages.tell_address if pages is not None else lambda: None
            code = _main_of(options)(config, server_config(options), listener, started_at, tell_pages)
        finally:
            load.stop()
            if pages is not None:
                pages.stop()
    if load.failure:
        print(failure_line(load.failure), file=sys.stderr, flush=True)
        return EXIT_LOAD_FAILED
    return 0 if code == _EXIT_CUT_OFF else code


def bind_demo_port(options: DemoOptions) -> socket.socket:
    """The port that was asked for; else the usual one, or any free one where that is taken."""
    if options.port is not None:
        return bind_port(options.host, options.port)
    return bind_or_free(options.host, DEFAULT_PORT)


def engine_args(options: DemoOptions) -> EngineArgs:
    """The engine that the regimes are made for, with each rank a process."""
    limits = SYNTHETIC_LIMITS
    return EngineArgs(
        load_format="synthetic",
        model_loader_extra_config={"num_ranks": options.ranks},
        distributed_executor_backend="mp",
        num_gpu_blocks_override=limits.num_blocks,
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        data_parallel_size=options.engines,
    )


def server_config(options: DemoOptions) -> ServerConfig:
    """The HTTP side: no line for each request, and a stall is noticed while it lasts."""
    assert options.port is not None
    return ServerConfig(
        host=options.host,
        port=options.port,
        inspect_port=options.inspect_port,
        stall_timeout=STALL_TIMEOUT_SECONDS,
        shutdown_timeout=SHUTDOWN_SECONDS,
        uvicorn_log_level="warning",
        disable_uvicorn_access_log=True,
        api_server_count=options.api_servers,
    )


def pages_options(options: DemoOptions) -> DashboardOptions:
    """Where the pages are, if they are wanted."""
    return DashboardOptions(options.host, options.dashboard_port)


def greeting(options: DemoOptions) -> str:
    """What is said first."""
    names = ", ".join(options.regimes)
    servers = "API server" if options.api_servers == 1 else f"{options.api_servers} API servers"
    engines = "engine, and" if options.engines == 1 else f"{options.engines} engines, each with"
    return (
        f"A demo without a model: {servers}, Observer, {engines} {options.ranks} rank(s) that only take their "
        f"time.\nEach for {options.period:g} s: {names}. Ctrl-C ends it."
    )


class DemoLoad:
    """The process that sends the requests. It ends with this one, however this one ends.

    If it ends by itself, ranks that it left stopped go on and the demo ends; `failure` then says why.
    """

    def __init__(self, options: DemoOptions) -> None:
        self.failure = ""
        self._stopping = threading.Event()
        configuration = {"options": asdict(options), "root_pid": os.getpid()}
        self._child: Child = spawn(LOAD_MODULE, LOAD_TITLE, configuration)
        self._child.on_exit(self._ended)

    def stop(self) -> None:
        """End it within seconds; idempotent."""
        self._stopping.set()
        self._child.stop(LOAD_STOP_SECONDS)

    def _ended(self, cause: str) -> None:
        resume_ranks(os.getpid())
        if not self._stopping.is_set():
            self.failure = cause
            self._end_server()

    def _end_server(self) -> None:
        """SIGTERM, once the server listens for it: before that it would end this process without a word."""
        deadline = time.monotonic() + SIGNALS_SECONDS
        while not callable(signal.getsignal(signal.SIGTERM)):
            if self._stopping.wait(SIGNALS_POLL_SECONDS):
                return
            if time.monotonic() >= deadline:
                print(failure_line(self.failure), file=sys.stderr, flush=True)
                os._exit(EXIT_LOAD_FAILED)
        os.kill(os.getpid(), signal.SIGTERM)


def failure_line(failure: str) -> str:
    """What is said of a load that ended by itself."""
    return f"vllm-obs: the load ended: {failure}"


def _main_of(options: DemoOptions) -> Callable[..., int]:
    """What runs the server; an API server that is alone needs no launcher."""
    if options.api_servers == 1:
        from vllm_obs.server.serve import run

        return run
    from vllm_obs.server.serve_many import run_many

    return run_many


def _set_title(options: DemoOptions) -> None:
    from setproctitle import setproctitle

    setproctitle(PROCESS_TITLE if options.api_servers == 1 else LAUNCHER_TITLE)
