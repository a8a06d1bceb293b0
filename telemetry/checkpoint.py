"""Checkpoint: the Observer's aggregates and where it stood in the rings, in one file that is replaced whole."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from vllm_obs.telemetry.ring_reader import RingCursor

FORMAT_VERSION = 1
MAX_CHECKPOINT_BYTES = 256 * 1024 * 1024

logger = logging.getLogger(__name__)


class Kept(Protocol):
    """Something that goes on where it was when the Observer is restarted."""

    def state(self) -> object:
        """All there is to keep, of values that msgpack has (dataclasses and NamedTuples included)."""

    def restore(self, state: Any) -> None:
        """Go on from what `state` gave, as plain lists and dicts. Raises if that is not what it knows."""


class _Content(NamedTuple):
    version: int
    saved_at: int
    cursors: list[RingCursor]
    parts: dict[str, msgspec.Raw]


class Resumed(NamedTuple):
    """What a checkpoint gave back: when it was saved (monotonic ns), the cursors, and which parts begin anew."""

    saved_at: int
    cursors: list[RingCursor]
    lost_parts: list[str]


class Checkpoint:
    """One file, written beside its place and renamed, so that it is whole or not there.

    Facts that were applied after it was saved are read again from the rings, from its cursors on; so the parts
    must be saved together, between two facts. `num_failures` counts saves that did not succeed.
    """

    def __init__(self, path: Path, parts: Mapping[str, Kept]) -> None:
        self._path = path
        self._parts = dict(parts)
        self._encode: Callable[[object], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
        self.num_failures = 0

    def save(self, cursors: list[RingCursor], now: int) -> bool:
        """Write everything; False, with the file before still in its place, if that is not possible."""
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            raw = {name: msgspec.Raw(self._encode(part.state())) for name, part in self._parts.items()}
            content = self._encode(_Content(FORMAT_VERSION, now, cursors, raw))
            _write(beside, content)
            beside.replace(self._path)
        except OSError as error:
            self._failed(beside)
            if self.num_failures == 1:
                logger.warning(
                    "the checkpoint %s was not saved: %s; the next try is in a second, later failures are counted "
                    "only",
                    self._path,
                    error.strerror or error,
                )
            return False
        except Exception:
            self._failed(beside)
            if self.num_failures == 1:
                logger.exception("the checkpoint %s was not saved; later failures are counted only", self._path)
            return False
        return True

    def load(self) -> Resumed | None:
        """Restore every part; None, and nothing changed, where there is no file that can be read."""
        try:
            content = msgspec.msgpack.decode(_read(self._path), type=_Content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("the checkpoint %s cannot be used: %s", self._path, error)
            return None
        if content.version != FORMAT_VERSION:
            logger.warning("the checkpoint %s has format %d, not %d", self._path, content.version, FORMAT_VERSION)
            return None
        lost = [name for name, part in self._parts.items() if not _restore(name, part, content.parts.get(name))]
        return Resumed(content.saved_at, content.cursors, lost)

    def _failed(self, beside: Path) -> None:
        self.num_failures += 1
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _restore(name: str, part: Kept, raw: msgspec.Raw | None) -> bool:
    if raw is None:
        return False
    try:
        part.restore(msgspec.msgpack.decode(raw))
    except Exception:
        logger.exception("%s begins anew: its part of the checkpoint cannot be used", name)
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        content = file.read(MAX_CHECKPOINT_BYTES + 1)
    if len(content) > MAX_CHECKPOINT_BYTES:
        raise ValueError(f"it has more than {MAX_CHECKPOINT_BYTES} bytes")
    return content


def _plain(value: object) -> object:
    """Containers that msgpack does not know, such as deques."""
    if isinstance(value, Iterable):
        return list(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be kept")
