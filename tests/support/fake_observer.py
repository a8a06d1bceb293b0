"""An Observer process that observes nothing: `python -m fake_observer`; real pipes, and a socket that answers."""

import os
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from vllm_obs.engine.child_main import Owner, run_child
from vllm_obs.engine.child_pipe import READY

ALIVE_SECONDS = 0.05


class Handler(BaseHTTPRequestHandler):
    """Answers any GET with its target and its Accept header; what is asked for decides how badly."""

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(60)
        if self.path == "/hang-up":
            return
        body = f"# {self.path} {self.headers['accept']}\n".encode()
        self.send_response(500 if self.path == "/broken" else 200)
        self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class UnixHttpServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An HTTP server at a path."""

    daemon_threads = True


def observe(owner: Owner) -> None:
    """Serve until told to stop, then drain, which a file in the run directory tells."""
    settings, begun_at = owner.configuration, time.monotonic()
    run_dir = Path(settings["run_dir"])
    path = run_dir / "observer.sock"
    path.unlink(missing_ok=True)
    stopping = threading.Event()
    owner.on_stop(lambda: None if settings.get("is_deaf") else stopping.set())
    server = UnixHttpServer(str(path), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (run_dir / "settings").write_text(repr(settings))
    if settings.get("is_never_ready"):
        time.sleep(120)
    port = settings.get("ports_instead", {}).get(str(settings["inspect_port"])) or settings["inspect_port"] or 4321
    owner.say(READY, {"inspect_host": settings["inspect_host"], "inspect_port": port})
    for order in settings.get("orders", []):
        owner.say("TELEMETRY", order)
    for order in settings.get("profiles", []):
        owner.say("PROFILE", order)
    while not stopping.wait(ALIVE_SECONDS):
        if time.monotonic() - begun_at > settings.get("alive_seconds", 120):
            time.sleep(120)
        owner.say("ALIVE")
    (run_dir / "drained").write_text(str(os.getpid()))


if __name__ == "__main__":
    run_child(observe)
