"""KeyWatch: takes the keys of a changed key file while the server runs; a broken file changes nothing."""

import asyncio
import contextlib
import logging
import signal

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.key_file import KeyFile, check_keys, doubt_of
from vllm_obs.server.service_notify import NO_SERVICE, ServiceNotify

LOOK_SECONDS = 0.5

logger = logging.getLogger(__name__)


class KeyWatch:
    """Looks at the key file twice a second, and at once on SIGHUP. Without a file it does nothing at all.

    The file is read in a thread: one on a server that does not answer holds up no request.
    """

    def __init__(self, keys: ApiKeys, server: ServerConfig, service: ServiceNotify = NO_SERVICE) -> None:
        self._keys = keys
        self._service = service
        self._given = dict.fromkeys(server.api_keys[: server.num_given_keys], "")
        self._file = None if server.api_key_file is None else KeyFile(server.api_key_file)
        self._asked = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on; call it on the loop, in the main thread."""
        if self._file is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked.set)
            self._watching = asyncio.create_task(self._watch(self._file), name="key file")

    def ask(self) -> None:
        """Look at the file at once."""
        self._asked.set()

    def stop(self) -> None:
        """Watch no longer."""
        if self._watching is not None:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            self._watching.cancel()

    async def _watch(self, file: KeyFile) -> None:
        if doubt := await asyncio.to_thread(doubt_of, file.path):
            logger.warning("%s", doubt)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
            is_asked = self._asked.is_set()
            self._asked.clear()
            try:
                await self._look(file, is_asked)
            except Exception:  # a watch that fails must not take the server with it
                logger.exception("the key file could not be looked at")

    async def _look(self, file: KeyFile, is_asked: bool) -> None:
        if is_asked:
            self._service.begin_reload()
        try:
            found = await asyncio.to_thread(file.changed_keys, is_asked)
            if found is not None:
                self._take(found, is_asked)
        except ConfigError as error:
            logger.error("%s; the keys stay as they were", error)
        finally:
            if is_asked:
                self._service.end_reload()

    def _take(self, found: dict[str, str], is_asked: bool) -> None:
        names_by_key = dict(self._given)
        for key, name in found.items():
            names_by_key[key] = names_by_key.get(key) or name
        check_keys(names_by_key)
        num_new, num_gone = self._keys.replace(names_by_key)
        if num_new or num_gone or is_asked:
            logger.info("API keys: %d are new, %d are gone, %d are valid", num_new, num_gone, len(names_by_key))
