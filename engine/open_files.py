"""How many files a process may open: as many as it needs, as far as it may allow itself."""

import contextlib
import resource

from vllm_obs.engine.errors import ConfigError

NUM_OWN_FILES = 1024
"""How many files a server has open beside connections, at the very most."""
MIN_FILES = 64
"""With fewer a server does not start, or has none left for connections."""


def require_files() -> None:
    """Let this process, and those that it starts, open what they need beside connections.

    ConfigError where they may open too few to start.
    """
    raise_file_limit(0)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_FILES:
        needed = f"{MIN_FILES} are needed to start, and one more for each connection"
        raise ConfigError(f"only {soft} files may be open at once (ulimit -n): {needed}")


def raise_file_limit(max_num_connections: int) -> None:
    """Let this process open as many files as so many connections need, as far as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_num_connections + NUM_OWN_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it: then there is less room
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
