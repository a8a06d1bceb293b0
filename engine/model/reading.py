"""The boundary around everything that reads a model's files: whatever is wrong with them is one line and 78."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllm_obs.engine.errors import ConfigError, VllmObsError

_SHOWN_CHARACTERS = 200


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Turns what nobody foresaw about the files at `place` into a ConfigError; a lack of memory stays itself."""
    try:
        yield
    except (VllmObsError, MemoryError):
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
        raise ConfigError(f"{place}: cannot be read: {type(error).__name__}: {detail}") from error
