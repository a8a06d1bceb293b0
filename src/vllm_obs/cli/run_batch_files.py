"""Opens the files of a batch, and keeps standard output for its lines alone where they go there."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.batch_files import BatchFiles

STANDARD = "-"
"""The name of standard input and output."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@contextlib.contextmanager
def opened(input_path: str, output_path: str) -> Iterator[BatchFiles]:
    """Both files, the output empty. Raises ConfigError for what cannot be opened, before it touches the output."""
    source = _open_input(input_path)
    try:
        with _output(output_path, source) as output:
            yield BatchFiles(source, output)
    finally:
        # Closing waits for a read that is under way, and that from a pipe may take for ever.
        if _is_regular(source):
            source.close()


def _open_input(path: str) -> BinaryIO:
    _refuse_address("--input-file", path)
    try:
        return os.fdopen(os.dup(_STDIN), "rb") if path == STANDARD else Path(path).open("rb")
    except OSError as error:
        raise ConfigError(f"--input-file {path:.256}: {error.strerror or error}") from None


@contextlib.contextmanager
def _output(path: str, source: BinaryIO) -> Iterator[BinaryIO]:
    _refuse_address("--output-file", path)
    if path == STANDARD:
        with _own_stdout() as output:
            yield output
        return
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(Path(path).stat(), os.fstat(source.fileno())) and _is_regular(source):
            raise ConfigError(f"--output-file {path:.256} is the input file")
    with _closing(_open_output(path)) as output:
        yield output


def _open_output(path: str) -> BinaryIO:
    try:
        return Path(path).open("wb")
    except OSError as error:
        raise ConfigError(f"--output-file {path:.256}: {error.strerror or error}") from None


@contextlib.contextmanager
def _own_stdout() -> Iterator[BinaryIO]:
    """Standard output; whoever else in this tree of processes writes there writes to standard error meanwhile."""
    with _closing(os.fdopen(os.dup(_STDOUT), "wb")) as output:
        os.dup2(_STDERR, _STDOUT)
        try:
            yield output
        finally:
            os.dup2(output.fileno(), _STDOUT)


@contextlib.contextmanager
def _closing(output: BinaryIO) -> Iterator[BinaryIO]:
    """A file that cannot be flushed has been told of when it was written."""
    try:
        yield output
    finally:
        with contextlib.suppress(OSError):
            output.close()


def _refuse_address(flag: str, path: str) -> None:
    if "://" in path:
        raise ConfigError(f"{flag} {path:.64} is an address; only local files are read and written")


def _is_regular(file: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
