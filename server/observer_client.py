"""Asks the Observer over its socket in the run directory; its answers are made in its process, not in this one."""

import asyncio
from pathlib import Path
from typing import NamedTuple

import h11

from vllm_obs.server.observer_pulse import pulse_of

SOCKET_NAME = "observer.sock"
DEADLINE_SECONDS = 5.0
MAX_BODY_BYTES = 64 << 20
MAX_QUESTIONS = 16
"""Asked at once; a hung Observer must not gather those who wait for it."""
_READ_BYTES = 1 << 16


class ObserverUnavailableError(Exception):
    """The Observer is not there, or did not answer in time or as it should."""


class Answer(NamedTuple):
    """The Observer's answer, its status 200."""

    content_type: str
    body: bytes


class ObserverClient:
    """Asks one question a connection, from the event loop."""

    def __init__(self, run_dir: str) -> None:
        self._path = Path(run_dir) / SOCKET_NAME if run_dir else None
        self._pulse = pulse_of(run_dir)
        self._num_open = 0

    async def get(self, target: str, accept: bytes) -> Answer:
        """The answer to `GET target` with that Accept header; ObserverUnavailableError when there is none."""
        if self._path is None:
            raise ObserverUnavailableError("telemetry is switched off")
        if self._pulse.is_quiet:
            seconds = self._pulse.quiet_seconds
            raise ObserverUnavailableError(f"the Observer has given no sign of life for {seconds:g} s")
        if self._num_open >= MAX_QUESTIONS:
            raise ObserverUnavailableError(f"{MAX_QUESTIONS} questions wait for the Observer already")
        self._num_open += 1
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await _ask(self._path, target, accept)
        except TimeoutError:
            raise ObserverUnavailableError(f"the Observer did not answer within {DEADLINE_SECONDS:g} s") from None
        except OSError:
            raise ObserverUnavailableError("the Observer is not there") from None
        except h11.ProtocolError as error:
            raise ObserverUnavailableError(f"the Observer's answer is broken: {error}") from None
        finally:
            self._num_open -= 1


async def _ask(path: Path, target: str, accept: bytes) -> Answer:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        connection = h11.Connection(h11.CLIENT)
        headers = [(b"host", b"observer"), (b"accept", accept), (b"connection", b"close")]
        request = h11.Request(method="GET", target=target, headers=headers)
        writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        await writer.drain()
        return await _read_answer(connection, reader)
    finally:
        writer.close()


async def _read_answer(connection: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    content_type, body = "", bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                raise ObserverUnavailableError(f"the Observer answered with status {event.status_code}")
            content_type = dict(event.headers).get(b"content-type", b"").decode("latin-1")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise ObserverUnavailableError(f"the Observer's answer is over {MAX_BODY_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(content_type, bytes(body))
        elif isinstance(event, h11.ConnectionClosed):
            raise ObserverUnavailableError("the Observer closed the connection")
