"""The EngineCore's threads at the sockets: one takes messages in, one for each API server sends outputs out."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import DropReason, WireError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.launch import engine_identity
from vllm_obs.engine.messages import EngineCoreOutputs, RequestType
from vllm_obs.engine.output_split import SentRows
from vllm_obs.engine.sockets import make_socket, receive_frames, send_frames
from vllm_obs.engine.wire import HELLO, EngineMessage, FrameEncoder, Hello, decode_request

MAX_INBOX_MESSAGES = 1 << 16
"""Beyond this the input thread stops reading, and the senders' queues fill."""
MAX_BURST = 64

_logger = logging.getLogger(__name__)


class Dropped(NamedTuple):
    """A message that was not taken; its owner is named where the message still told."""

    reason: DropReason
    at: int
    client_index: int
    request_id: str | None


class Signal(NamedTuple):
    """Something other than a message for the main loop: WAKEUP, or EXECUTOR_FAILED with the cause."""

    kind: RequestType
    cause: str


Inbox = SimpleQueue[EngineMessage | Dropped | Signal]
Outbox = SimpleQueue[EngineCoreOutputs]


@dataclass(frozen=True)
class CoreAddress:
    """Who this engine is and where its clients listen: (request, output) endpoints by client_index."""

    engine_index: int
    generation: int
    pid: int
    clients: list[tuple[str, str]] = field(default_factory=list)


class CoreInput:
    """Reads the DEALER of every client and puts what decodes into the inbox."""

    def __init__(self, address: CoreAddress, inbox: Inbox) -> None:
        self._address = address
        self._inbox = inbox
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        identity = engine_identity(address.engine_index, address.generation)
        self._sockets = [make_socket(self._context, zmq.DEALER, identity) for _ in address.clients]

    def run(self) -> None:
        """Say HELLO to every client, then take messages for as long as the process lives."""
        poller = zmq.Poller()
        hello = Hello(self._address.engine_index, self._address.generation, self._address.pid)
        for socket, (endpoint, _) in zip(self._sockets, self._address.clients, strict=True):
            socket.connect(endpoint)
            send_frames(socket, FrameEncoder().frames(HELLO, hello))
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                self._take_burst(socket)

    def _take_burst(self, socket: "zmq.Socket[bytes]") -> None:
        client_index = self._sockets.index(socket)
        for _ in range(MAX_BURST):
            try:
                item = self._take(socket, client_index)
            except zmq.Again:
                return
            while self._inbox.qsize() >= MAX_INBOX_MESSAGES:
                time.sleep(0.001)
            self._inbox.put(item)

    def _take(self, socket: "zmq.Socket[bytes]", client_index: int) -> EngineMessage | Dropped:
        try:
            message = decode_request(receive_frames(socket, zmq.DONTWAIT))
        except WireError as error:
            owner = error.request_id if error.client_index == client_index else None
            return Dropped(error.reason, time.monotonic_ns(), client_index, owner)
        maybe_fault("engine_input", getattr(message, "request_id", ""))
        if message.generation != self._address.generation:
            return Dropped("generation", time.monotonic_ns(), client_index, None)
        if message.client_index != client_index:
            return Dropped("client", time.monotonic_ns(), client_index, None)
        return message


class CoreOutput:
    """Sends one client's outputs, in order. A client that does not read holds up only its own.

    `end` is called with the sequences that were told of an error because their outputs do not fit the wire.
    """

    def __init__(
        self, endpoint: str, outbox: Outbox, end: Callable[[list[str]], None] = lambda request_ids: None
    ) -> None:
        self._endpoint = endpoint
        self._outbox = outbox
        self._end = end
        self._encoder = FrameEncoder()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = make_socket(self._context, zmq.PUSH)

    def run(self) -> None:
        """Send for as long as the process lives."""
        self._socket.connect(self._endpoint)
        while True:
            outputs = self._outbox.get()
            maybe_fault("engine_output")
            self._send(outputs._replace(sent_at=time.monotonic_ns()))

    def _send(self, outputs: EngineCoreOutputs) -> None:
        sent = SentRows(self._encoder, outputs)
        for frames in sent.messages:
            self._send_frames(frames)
        if sent.failed_ids:
            _logger.error("the outputs of %d request(s) are too large to be sent", len(sent.failed_ids))
            self._end(sent.failed_ids)

    def _send_frames(self, frames: list[Buffer]) -> None:
        while True:
            try:
                return send_frames(self._socket, frames)
            except zmq.Again:
                _logger.warning("the client at %s does not read its outputs", self._endpoint.rpartition("/")[2])
