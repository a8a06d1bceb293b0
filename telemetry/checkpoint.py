"""Checkpoint: the Observer's aggregates and where it stood in the rings, in two files written in turn."""

import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import msgspec

from vllm_obs.telemetry.ring_reader import RingCursor

FORMAT_VERSION = 1
MAX_CHECKPOINT_BYTES = 256 * 1024 * 1024
OTHER_SUFFIX = ".other"
"""The second file's name is the first's with this at its end."""

_HEAD = struct.Struct("<8sQQ")
"""What a file begins with: _MAGIC, the size of its content, and the CRC-32 of that."""
_MAGIC = b"vobsckpt"

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
    """Two files, of which the older is overwritten each time: whatever ends this process, one of them is whole.

    Not one that is written beside and renamed: some file systems write to the disk at once what takes another's
    name, which costs more than all the rest. Facts that were applied after it was saved are read again from the
    rings, from its cursors on; so the parts must be saved together, between two facts. `num_failures` counts saves
    that did not succeed.
    """

    def __init__(self, path: Path, parts: Mapping[str, Kept]) -> None:
        self._paths = [path, path.with_name(path.name + OTHER_SUFFIX)]
        """The one to be written next first."""
        self._parts = dict(parts)
        self._encode: Callable[[object], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
        self.num_failures = 0

    def save(self, cursors: list[RingCursor], now: int) -> bool:
        """Write everything; False, with what was saved last still there, if that is not possible."""
        try:
            raw = {name: msgspec.Raw(self._encode(part.state())) for name, part in self._parts.items()}
            _write(self._paths[0], self._encode(_Content(FORMAT_VERSION, now, cursors, raw)))
        except OSError as error:
            self.num_failures += 1
            if self.num_failures == 1:
                logger.warning(
                    "the checkpoint %s was not saved: %s; the next try is within seconds, later failures are "
                    "counted only",
                    self._paths[0],
                    error.strerror or error,
                )
            return False
        except Exception:
            self.num_failures += 1
            if self.num_failures == 1:
                logger.exception(
                    "the checkpoint %s was not saved; later failures are counted only", self._paths[0]
                )
            return False
        self._paths.reverse()
        return True

    def load(self) -> Resumed | None:
        """Restore every part as it was saved last; None, and nothing changed, where no file can be used."""
        contents = {path: content for path in self._paths if (content := _read_content(path)) is not None}
        if not contents:
            return None
        newest = max(contents, key=lambda path: contents[path].saved_at)
        if newest == self._paths[0]:
            self._paths.reverse()
        content = contents[newest]
        lost = [name for name, part in self._parts.items() if not _restore(name, part, content.parts.get(name))]
        return Resumed(content.saved_at, content.cursors, lost)


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
    """In place: what was longer stays behind the content. While this goes on the head says what is not there."""
    head = _HEAD.pack(_MAGIC, len(content), crc32(content))
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        rest = memoryview(head + content)
        while rest:
            rest = rest[file.write(rest) :]


def _read_content(path: Path) -> _Content | None:
    """What was saved in a file; None where there is none, or none that is whole."""
    try:
        content = msgspec.msgpack.decode(_read(path), type=_Content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("the checkpoint %s cannot be used: %s", path, error)
        return None
    if content.version != FORMAT_VERSION:
        logger.warning("the checkpoint %s has format %d, not %d", path, content.version, FORMAT_VERSION)
        return None
    return content


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        head = file.read(_HEAD.size)
        magic, num_bytes, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0)
        if magic != _MAGIC:
            raise ValueError("it is none")
        if num_bytes > MAX_CHECKPOINT_BYTES:
            raise ValueError(f"it has more than {MAX_CHECKPOINT_BYTES} bytes")
        content = file.read(num_bytes)
    if len(content) != num_bytes or crc32(content) != checksum:
        raise ValueError("it is not whole")
    return content


def _plain(value: object) -> object:
    """Containers that msgpack does not know, such as deques."""
    if isinstance(value, Iterable):
        return list(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be kept")
