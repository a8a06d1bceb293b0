"""What a start prints: where the time went, what was loaded, and the address."""

import socket
import time

from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.state import ApiServer


def ready_lines(api: ApiServer, facts: EngineFacts, sock: socket.socket, started_at: int) -> list[str]:
    """The lines, the one with the address last."""
    seconds = (time.monotonic_ns() - started_at) / 1e9
    phases = ", ".join(f"{name} {length:.1f} s" for name, length in facts.phases)
    names = ", ".join(api.config.model.served_model_names)
    return [
        f"Engine started: {phases}" if phases else "Engine started",
        f"KV cache: {facts.num_gpu_blocks} blocks of {facts.block_size} = {facts.kv_cache_size_tokens} tokens, "
        f"{facts.kv_cache_max_concurrency:.1f} requests of {facts.max_model_len} tokens at once",
        f"Ready in {seconds:.1f} s: {address(api, sock)} (model {names}, {facts.dtype} on {facts.device})",
    ]


def port_of(sock: socket.socket) -> int | None:
    """The TCP port a socket is bound to; None for a path."""
    return None if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


def address(api: ApiServer, sock: socket.socket) -> str:
    """Where the socket listens, as a client on this host writes it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{api.server.scheme}://{host}:{port}{api.server.root_path}"
