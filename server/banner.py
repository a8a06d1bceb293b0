"""What a start prints: where the time went, what was loaded, and the address."""

import socket
import time
from collections.abc import Sequence
from typing import Protocol

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.config import ServerConfig

_SHOWN_SECONDS = 0.05
"""What took less would be told as 0.0 s, though it may have been done before, in a head start."""


class Served(Protocol):
    """What an address and a banner are made of, as ApiServer and Launcher have it."""

    @property
    def config(self) -> VllmConfig:
        """What is run."""

    @property
    def server(self) -> ServerConfig:
        """How it is served."""


def ready_lines(served: Served, engines: Sequence[EngineFacts], sock: socket.socket, started_at: int) -> list[str]:
    """The lines, the one with the address last; of several engines the slowest's phases, and each one's cache."""
    seconds = (time.monotonic_ns() - started_at) / 1e9
    facts = max(engines, key=lambda engine: sum(length for _, length in engine.phases))
    phases = ", ".join(f"{name} {length:.1f} s" for name, length in facts.phases if length >= _SHOWN_SECONDS)
    names = ", ".join(served.config.model.served_model_names)
    started = "Engine started" if len(engines) == 1 else f"{len(engines)} engines started"
    each = "" if len(engines) == 1 else " in each engine"
    return [
        f"{started}: {phases}" if phases else started,
        f"KV cache{each}: {facts.num_gpu_blocks} blocks of {facts.block_size} = {facts.kv_cache_size_tokens} "
        "tokens, "
        f"{facts.kv_cache_max_concurrency:.1f} requests of {facts.max_model_len} tokens at once",
        f"Ready in {seconds:.1f} s: {address(served, sock)} (model {names}, {facts.dtype} on {facts.device})",
    ]


def port_of(sock: socket.socket) -> int | None:
    """The TCP port a socket is bound to; None for a path."""
    return None if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


def address(served: Served, sock: socket.socket) -> str:
    """Where the socket listens, as a client on this host writes it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{served.server.scheme}://{host}:{port}{served.server.root_path}"
