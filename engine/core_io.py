"""The EngineCore's threads at the sockets: one takes messages in, one for each API server sends outputs out."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import DropReason, WireError
from vllm_obs.engine.engine_titles import engine_identity
from vllm_obs.engine.faults import maybe_fault
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


class ClientReplaced(NamedTuple):
    """A client's process has ended, and whoever takes its place listens elsewhere: endpoints as in CoreAddress.

    What it sent lies before this in the inbox, and nothing of it comes after.
    """

    client_index: int
    inputs: str
    outputs: str


Inbox = SimpleQueue[EngineMessage | Dropped | Signal | ClientReplaced]


class Outbox(SimpleQueue[EngineCoreOutputs | None]):
    """What waits to be sent to one client; None after the last. One thread puts in, another gets and says `done`.

    `get_nowait` is for the one that puts in, which takes back with it what nobody has got.
    """

    def __init__(self) -> None:
        self._num_put = self._num_done = 0

    def put(self, item: EngineCoreOutputs | None, block: bool = True, timeout: float | None = None) -> None:
        """Queue a message; never blocks."""
        self._num_put += 1
        super().put(item)

    def get_nowait(self) -> EngineCoreOutputs | None:
        """Take the oldest back; queue.Empty where all have been got."""
        item = super().get_nowait()
        self._num_put -= 1
        return item

    def done(self) -> None:
        """One of those that were got has been dealt with."""
        self._num_done += 1

    @property
    def is_idle(self) -> bool:
        """Whether all that was put in has been dealt with; asked by the thread that puts in, it stays so."""
        return self._num_put == self._num_done


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
        self._poller = zmq.Poller()
        self._replaced: SimpleQueue[ClientReplaced] = SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._sockets = [self._make_socket() for _ in address.clients]

    def _make_socket(self) -> "zmq.Socket[bytes]":
        identity = engine_identity(self._address.engine_index, self._address.generation)
        return make_socket(self._context, zmq.DEALER, identity)

    def replace(self, replaced: ClientReplaced) -> None:
        """Hear the old client no longer, and the new one from now on; callable from any thread."""
        self._replaced.put(replaced)
        os.eventfd_write(self._bell, 1)

    def run(self) -> None:
        """Say HELLO to every client, then take messages for as long as the process lives."""
        for client_index, (endpoint, _) in enumerate(self._address.clients):
            self._connect(client_index, endpoint)
        self._poller.register(self._bell, zmq.POLLIN)
        while True:
            ready = dict(self._poller.poll())
            for client_index, socket in enumerate(self._sockets):
                if socket in ready:
                    self._take_burst(socket, client_index)
            if self._bell in ready:
                self._let_in()

    def _connect(self, client_index: int, endpoint: str) -> None:
        socket = self._sockets[client_index]
        socket.connect(endpoint)
        hello = Hello(self._address.engine_index, self._address.generation, self._address.pid)
        send_frames(socket, FrameEncoder().frames(HELLO, hello))
        self._poller.register(socket, zmq.POLLIN)

    def _let_in(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._replaced.empty():
            replaced = self._replaced.get()
            client_index = replaced.client_index
            self._poller.unregister(self._sockets[client_index])
            self._sockets[client_index].close(linger=0)
            self._sockets[client_index] = self._make_socket()
            self._put(replaced)
            self._connect(client_index, replaced.inputs)

    def _take_burst(self, socket: "zmq.Socket[bytes]", client_index: int) -> None:
        for _ in range(MAX_BURST):
            try:
                item = self._take(socket, client_index)
            except zmq.Again:
                return
            self._put(item)

    def _put(self, item: EngineMessage | Dropped | ClientReplaced) -> None:
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

    Most are sent by the core's own thread, in `send_now`: to wake another for each step costs more than sending
    does. Where something waits already, or the client takes no more, they go through the outbox and `run`.
    `end` is called with the sequences that were told of an error because their outputs do not fit the wire.
    """

    def __init__(
        self, endpoint: str, outbox: Outbox, end: Callable[[list[str]], None] = lambda request_ids: None
    ) -> None:
        self._endpoint = endpoint
        self._outbox = outbox
        self._end = end
        self._encoder = FrameEncoder()
        self._is_over = False
        self._is_connected = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = make_socket(self._context, zmq.PUSH)

    def end(self) -> None:
        """Send nothing any more, whatever waits: the client is gone. Callable from any thread."""
        self._is_over = True
        self._outbox.put(None)

    def send_now(self, outputs: EngineCoreOutputs) -> bool:
        """Send it without waiting; False where it has to go through the outbox. For who puts into that only.

        The socket is the other thread's while anything is in its hands, and this one's else.
        """
        if not self._is_connected or not self._outbox.is_idle or self._is_over:
            return False
        maybe_fault("engine_output")
        if not outputs.sent_at:  # no step made it
            outputs = outputs._replace(sent_at=time.monotonic_ns())
        try:
            send_frames(self._socket, self._encoder.outputs(outputs), zmq.DONTWAIT)
        except (zmq.Again, WireError):
            return False
        return True

    def run(self) -> None:
        """Send what is put into the outbox until `end`."""
        self._socket.connect(self._endpoint)
        self._is_connected = True
        while (outputs := self._outbox.get()) is not None and not self._is_over:
            maybe_fault("engine_output")
            self._send(outputs._replace(sent_at=time.monotonic_ns()))
            self._outbox.done()
        self._context.destroy(linger=0)

    def _send(self, outputs: EngineCoreOutputs) -> None:
        sent = SentRows(self._encoder, outputs)
        for frames in sent.messages:
            self._send_frames(frames)
        if sent.failed_ids:
            _logger.error("the outputs of %d request(s) are too large to be sent", len(sent.failed_ids))
            self._end(sent.failed_ids)

    def _send_frames(self, frames: list[Buffer]) -> None:
        while not self._is_over:
            try:
                send_frames(self._socket, frames)
            except zmq.Again:
                _logger.warning("the client at %s does not read its outputs", self._endpoint.rpartition("/")[2])
            else:
                return
