"""A client's outputs leave in order, by the core's own thread where nothing has to be waited for."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import pytest
import zmq
from step_outputs import Row, step_outputs

from vllm_obs.engine.core_io import CoreOutput, Outbox
from vllm_obs.engine.messages import EngineCoreOutputs, SchedulerStats
from vllm_obs.engine.sockets import make_socket, receive_frames, socket_endpoint
from vllm_obs.engine.wire import decode_outputs


def outputs_of(step: int, num_rows: int = 1) -> EngineCoreOutputs:
    rows = [Row(f"r-{row}", [7]) for row in range(num_rows)]
    return step_outputs(*rows)._replace(step=step, stats=SchedulerStats(num_rows, 0, 0.5, 0))


class Client:
    """A client's end of the socket, and the engine's end with its thread."""

    def __init__(self, run_dir: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = make_socket(self._context, zmq.PULL)
        endpoint = socket_endpoint(run_dir, "out")
        self._socket.bind(endpoint)
        self.outbox = Outbox()
        self.output = CoreOutput(endpoint, self.outbox)
        self._thread = threading.Thread(target=self.output.run)

    def start(self) -> None:
        """Return once the thread has connected and waits for what is put into the outbox."""
        self._thread.start()
        self.outbox.put(outputs_of(-1))
        assert self.read() == -1

    def read(self) -> int:
        """The step of the next message."""
        return self.read_whole().step

    def read_whole(self) -> EngineCoreOutputs:
        """The next message."""
        assert self._socket.poll(10_000), "nothing came"
        return decode_outputs(receive_frames(self._socket))

    def close(self) -> None:
        self.output.end()
        if self._thread.ident is not None:
            self._thread.join(10)
        self._context.destroy(linger=0)


@pytest.fixture
def client(run_base: Path) -> Iterator[Client]:
    made = Client(str(run_base))
    yield made
    made.close()


def wait_until(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(1000):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError("it never held")


def test_nothing_is_sent_by_the_core_before_the_thread_has_connected(client: Client) -> None:
    assert not client.output.send_now(outputs_of(0))
    client.start()
    wait_until(lambda: client.outbox.is_idle)
    assert client.output.send_now(outputs_of(1))
    assert client.read() == 1


def test_what_goes_through_the_outbox_is_not_overtaken(client: Client) -> None:
    client.start()
    sent, by_thread = 0, 0
    while sent < 300:
        if sent % 7 == 0 or not client.output.send_now(outputs_of(sent)):
            client.outbox.put(outputs_of(sent))
            by_thread += 1
        sent += 1
    assert [client.read() for _ in range(300)] == list(range(300))
    assert by_thread >= 300 // 7


def test_a_message_in_the_threads_hands_keeps_the_core_from_sending() -> None:
    outbox = Outbox()
    outbox.put(outputs_of(0))
    assert not outbox.is_idle
    assert outbox.get() is not None
    assert not outbox.is_idle
    outbox.done()
    assert outbox.is_idle


def test_what_was_taken_back_is_nobodys_any_more() -> None:
    outbox = Outbox()
    for step in range(3):
        outbox.put(outputs_of(step))
    outbox.get()
    assert [taken.step for taken in (outbox.get_nowait(), outbox.get_nowait()) if taken is not None] == [1, 2]
    with pytest.raises(Empty):
        outbox.get_nowait()
    assert not outbox.is_idle
    outbox.done()
    assert outbox.is_idle


def test_a_message_that_fits_no_frame_is_left_to_the_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.start()
    wait_until(lambda: client.outbox.is_idle)
    monkeypatch.setattr("vllm_obs.engine.wire.MAX_PAYLOAD_BYTES", 1000)
    assert not client.output.send_now(outputs_of(0, num_rows=500))
    assert client.output.send_now(outputs_of(1))
    assert client.read() == 1


def test_nothing_is_sent_after_the_end(client: Client) -> None:
    client.start()
    client.output.end()
    assert not client.output.send_now(outputs_of(0))


def test_what_no_step_made_has_the_moment_it_is_sent(client: Client) -> None:
    """Else its way would be as long as the host has been up, in the delays that are measured."""
    client.start()
    wait_until(lambda: client.outbox.is_idle)
    begun_at = time.monotonic_ns()
    assert client.output.send_now(outputs_of(1)._replace(sent_at=0))
    assert client.read_whole().sent_at >= begun_at
