"""A head start for an engine: its process loads what any engine needs while its configuration is still read."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import cast

from vllm_obs.engine.child_main import die_with
from vllm_obs.engine.child_start import Started, start
from vllm_obs.engine.config import Device
from vllm_obs.engine.startup_phases import startup_part
from vllm_obs.engine.worker.torch_import import import_torch

_AHEAD = "ahead"

_waiting: list[Started] = []
"""At most one that nobody has taken yet."""


@contextmanager
def head_start(module: str, torch_device: Device | None) -> Iterator[None]:
    """Start a process of `module`, which the first engine started in this block will be. StartupError.

    It loads torch for that device, or none. Call it from the main thread. At the block's end a process that no
    engine became is ended.
    """
    words = [_AHEAD, str(os.getpid()), torch_device or ""]
    _waiting.append(start(module, words=words))
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().discard()


def started(module: str, title: str) -> Started:
    """The process of that module that has a head start, or one that is started now. StartupError."""
    if _waiting and _waiting[0].module == module:
        return _waiting.pop()
    return start(module, title=title)


def use_head_start() -> None:
    """In the process itself: where it was started ahead, load torch if it was told to. It ends with its parent."""
    words = sys.argv[3:]
    if words[:1] != [_AHEAD]:
        return
    die_with(int(words[1]))
    if device := cast(Device, words[2]):
        with startup_part("import torch"):
            import_torch(device)
        with startup_part("import worker"):
            import_module("vllm_obs.engine.worker.worker")
    with startup_part("wait for configuration"):  # or for the end of who would send it, which can be read too
        select.select([int(sys.argv[1])], [], [])
