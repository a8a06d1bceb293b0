"""The EngineCore's busy loop: takes messages in, runs steps while there is work, and sleeps when there is none."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from vllm_obs.engine.child_main import cause_of
from vllm_obs.engine.core_cut_off import MAX_OUTBOX_MESSAGES, drain, failed_rows, last_words
from vllm_obs.engine.core_io import ClientReplaced, CoreAddress, Dropped, Inbox, Outbox, Signal
from vllm_obs.engine.errors import EngineDeadError, RequestError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.messages import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    FinishReason,
    RequestType,
    UtilityCall,
    UtilityResult,
)
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import FrameDropped

MAX_MESSAGES_A_TURN = 1024
"""Between two steps, so that a flood of messages cannot stop the running requests."""

_logger = logging.getLogger(__name__)


class Core(Protocol):
    """What the loop needs of an EngineCore."""

    @property
    def facts(self) -> EngineFacts:
        """What READY carries."""

    @property
    def resting(self) -> Activity:
        """Why there is no work: nobody wants any, it was told to leave it undone, or grammars are compiled."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a sequence."""

    def abort_requests(self, abort: AbortRequests) -> None:
        """End sequences."""

    def on_grammar(self, call: Callable[[], None]) -> None:
        """Call this, from any thread, when there may be work because a grammar is compiled."""

    def has_work(self) -> bool:
        """Whether `step` has something to run or to say."""

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Run one step; its outputs by client_index."""

    def is_live(self, request_id: str) -> bool:
        """Whether there is a sequence of that id that has not ended."""

    def live_ids(self, client_index: int) -> list[str]:
        """The sequences of a client that have not ended."""

    def forget_client(self, client_index: int) -> int:
        """End all sequences of a client that is gone and keep nothing for it; how many they were."""

    def call_utility(self, method: str, args: list[Any]) -> Any:
        """Call a named method with plain arguments."""

    def shutdown(self) -> None:
        """End the executor."""


class EngineCoreProc:
    """The main loop of an engine process, between an inbox and one outbox for each client."""

    def __init__(self, core: Core, address: CoreAddress, inbox: Inbox, recorder: ProcessRecorder) -> None:
        self.outboxes = [Outbox() for _ in address.clients]
        self._core = core
        self._address = address
        self._inbox = inbox
        self._recorder = recorder
        self._num_dropped: Counter[str] = Counter()
        self._is_stopping = False
        self.send_now: dict[int, Callable[[EngineCoreOutputs], bool]] = {}
        """By client: sends a message at once, or says that it has to go through the outbox (False)."""
        self.on_replaced: Callable[[ClientReplaced, Outbox], None] = lambda replaced, outbox: None
        """Called with the outbox of a client that takes another's place."""

    def stop(self) -> None:
        """End `run` after the step it is in; callable from any thread."""
        self._is_stopping = True
        self._inbox.put(Signal(RequestType.WAKEUP, ""))

    def run(self) -> None:
        """Loop until `stop`. Raises EngineDeadError when the executor failed; nothing else should escape."""
        while not self._is_stopping:
            self.turn()

    def turn(self) -> None:
        """Take in what has come, waiting for it while there is nothing to do, and run a step if there is one."""
        self._drain_inbox()
        if self._core.has_work() and not self._is_stopping:
            maybe_fault("engine_step")
            outputs_by_client = self._core.step()
            self._recorder.doing(Activity.SENDING)
            for client_index, outputs in outputs_by_client.items():
                self._send(client_index, outputs)

    def _drain_inbox(self) -> None:
        self._recorder.heartbeat(time.monotonic_ns())
        if not self._core.has_work():
            self._recorder.doing(self._core.resting)
            self._handle(self._inbox.get())
        self._recorder.doing(Activity.RECEIVING)
        for _ in range(MAX_MESSAGES_A_TURN):
            if self._inbox.empty():  # this thread alone takes from it
                return
            self._handle(self._inbox.get_nowait())

    def _handle(self, item: Any) -> None:
        match item:
            case EngineCoreRequest():
                self._add(item)
            case AbortRequests():
                self._core.abort_requests(item)
            case UtilityCall():
                self._answer(item)
            case Dropped():
                self._refuse(item)
            case ClientReplaced():
                self._replace(item)
            case Signal(RequestType.EXECUTOR_FAILED, cause):
                raise EngineDeadError(cause)

    def _add(self, request: EngineCoreRequest) -> None:
        try:
            self._core.add_request(request)
        except MemoryError:
            raise
        except RequestError as error:
            self._send_error(request.client_index, request.request_id, (error.reason, str(error)))
        except Exception:
            _logger.exception("adding request %s failed", request.request_id)
            failure = ("internal_error", "the engine could not take this request")
            self._send_error(request.client_index, request.request_id, failure)

    def _answer(self, call: UtilityCall) -> None:
        try:
            result = UtilityResult(call.call_id, self._core.call_utility(call.method, call.args), "")
        except MemoryError:
            raise
        except Exception as error:
            _logger.exception("utility call %s failed", call.method)
            result = UtilityResult(call.call_id, None, cause_of(error)[0])
        self._send(call.client_index, self._no_rows(call.client_index)._replace(utility=result))

    def _replace(self, replaced: ClientReplaced) -> None:
        """All that the old client ran ends now: nobody would read it. The new one hears nothing of it."""
        num_ended = self._core.forget_client(replaced.client_index)
        _logger.warning("client %d is gone: %d sequence(s) of it end", replaced.client_index, num_ended)
        self.send_now.pop(replaced.client_index, None)
        outbox = self.outboxes[replaced.client_index] = Outbox()
        self.on_replaced(replaced, outbox)

    def _refuse(self, dropped: Dropped) -> None:
        self._recorder.record(FrameDropped("engine_input", dropped.reason, dropped.at))
        self._num_dropped[dropped.reason] += 1
        count = self._num_dropped[dropped.reason]
        is_round = count & (count - 1) == 0
        level = logging.WARNING if is_round else logging.DEBUG
        _logger.log(level, "dropped message %d from client %d: %s", count, dropped.client_index, dropped.reason)
        if dropped.request_id is not None and not self._core.is_live(dropped.request_id):
            failure = ("invalid_value", "the engine could not read this request")
            self._send_error(dropped.client_index, dropped.request_id, failure)

    def _send_error(self, client_index: int, request_id: str, failure: tuple[str, str]) -> None:
        self._send(client_index, failed_rows(self._no_rows(client_index), [request_id], failure))

    def _no_rows(self, client_index: int) -> EngineCoreOutputs:
        return EngineCoreOutputs(
            client_index=client_index,
            engine_index=self._address.engine_index,
            generation=self._address.generation,
            step=-1,
            request_ids=[],
            num_new_tokens=[],
            new_token_ids=[],
            finish_reasons=[],
            stop_token_ids=[],
            num_cached_tokens=[],
            logprobs=[],
            prompt_logprobs=[],
            errors=[],
            timings=[],
            detours=[],
            utility=None,
            stats=None,
            sampled_at=0,
            sent_at=0,
        )

    def _send(self, client_index: int, outputs: EngineCoreOutputs) -> None:
        if outputs.engine_index != self._address.engine_index:
            outputs = outputs._replace(engine_index=self._address.engine_index)
        send_now = self.send_now.get(client_index)
        if send_now is not None and send_now(outputs):
            return
        outbox = self.outboxes[client_index]
        if outbox.qsize() >= MAX_OUTBOX_MESSAGES:
            self._cut_off(client_index)
        outbox.put(outputs)

    def _cut_off(self, client_index: int) -> None:
        """End all that a client runs who does not read, in the place of what waits for it; nobody else waits."""
        outbox, live_ids = self.outboxes[client_index], self._core.live_ids(client_index)
        unread = drain(outbox)
        _logger.warning("client %d left %d messages unread: its requests end", client_index, len(unread))
        self._recorder.record(FrameDropped("engine_output", "unread", time.monotonic_ns()))
        for outputs in last_words(unread, live_ids, self._no_rows(client_index), MAX_OUTBOX_MESSAGES // 2):
            outbox.put(outputs)
        abort = AbortRequests(client_index, self._address.generation, live_ids, int(FinishReason.ABORT))
        self._core.abort_requests(abort)
