"""A front end of the simulation: the real OutputProcessor and FrontQueue, and what their clients see."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from simulation_model import LetterTokenizer, Reply, spelled
from simulation_requests import Asked
from simulation_room import Room
from simulation_wire import Frames

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_sockets import EngineSockets, Route
from vllm_obs.engine.errors import OverloadedError, RequestFailedError
from vllm_obs.engine.frontend.front_queue import FrontQueue
from vllm_obs.engine.frontend.open_sequence import SequenceRequest
from vllm_obs.engine.frontend.output_processor import OutputProcessor
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.messages import AbortRequests, EngineCoreOutputs, FinishReason
from vllm_obs.engine.queue_bound import QueueLimits
from vllm_obs.engine.wire import FrameEncoder
from vllm_obs.telemetry.recorder import NullRecorder
from vllm_obs.telemetry.records import Record, RequestEnded

Send = Callable[[int, int, Frames], None]
"""Sends a client's frames to an engine's life: (client_index, generation, frames)."""


class Ledger(NullRecorder):
    """Counts the endings that are recorded."""

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()

    def record(self, record: Record) -> None:
        if isinstance(record, RequestEnded):
            self.endings[record.request_id] += 1


class SimulatedLink:
    """The receiving half of EngineSockets for one life of the engine."""

    receive = EngineSockets.receive
    drop = EngineSockets.drop

    def __init__(self, generation: int, client_index: int) -> None:
        self.route = Route(client_index, 0, generation)
        self.num_dropped: Counter[str] = Counter()
        self._recorder = NullRecorder()


class Transcript:
    """What came of one sequence, held to what it gives alone.

    `num_prompt_tokens` is of how many its log-probabilities were asked for, 0 for none.
    """

    def __init__(self, request_id: str, expected: Reply, num_prompt_tokens: int) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.expected = expected
        self.token_ids: list[int] = []
        self.text = ""
        self.ending = ""
        self.reason = ""
        self.num_prompt_logprobs = 0

    def take(self, delta: SequenceDelta) -> None:
        """The next delta of it."""
        expected, name = self.expected, self.request_id
        assert not self.ending, f"{name}: output after its ending"
        self.token_ids += delta.token_ids
        self.text += delta.text
        assert tuple(self.token_ids) == expected.token_ids[: len(self.token_ids)], (
            f"{name}: other tokens than alone"
        )
        spelling = "".join(map(spelled, self.token_ids))
        assert spelling.startswith(self.text), f"{name}: the text is not that of the tokens"
        if delta.logprobs is not None:
            assert [entry.token_id for entry in delta.logprobs] == delta.token_ids, f"{name}: others' logprobs"
        self.num_prompt_logprobs += len(delta.prompt_logprobs or ())
        assert delta.prompt_logprobs is None or self.num_prompt_tokens, f"{name}: scores nobody asked for"
        if delta.finish_reason is not None:
            self._end(delta)

    def _end(self, delta: SequenceDelta) -> None:
        self.ending = delta.finish_reason or ""
        self.reason = "" if delta.error is None else delta.error.reason
        if self.ending in ("stop", "length"):
            made = Reply(tuple(self.token_ids), self.text, self.ending, delta.stop_reason)
            assert made == self.expected, f"{self.request_id}: {made} and not {self.expected}"
            assert self.num_prompt_logprobs == self.num_prompt_tokens, f"{self.request_id}: scores are lost"


class SimulatedFront:
    """As AsyncLLM, without its event loop: registers, sends, ends what is aborted; made anew for each engine."""

    def __init__(self, client_index: int, config: VllmConfig, clock: Callable[[], int], send: Send) -> None:
        self.client_index = client_index
        self.generation = -1
        self.transcripts: dict[str, Transcript] = {}
        self.ledger = Ledger()
        self.reached: Counter[str] = Counter()
        self.wrong = ""
        self.departed_at: dict[str, int] = {}
        """When sequences ended for their clients."""
        self._waiting: dict[str, int] = {}
        self._limits = QueueLimits.from_config(config)
        self._clock = clock
        self._send = send
        self._encoder = FrameEncoder()
        self._connect(-1)

    def _connect(self, generation: int) -> None:
        self.generation = generation
        self._link = SimulatedLink(generation, self.client_index)
        self.outputs = OutputProcessor(LetterTokenizer(), self.ledger, self.client_index, self._clock)  # type: ignore[arg-type]
        self.queue = FrontQueue(self._limits, lambda: self.outputs.num_open, self._clock)
        self._waiting.clear()

    def check(self) -> None:
        """Nothing was wrong, and in the queue is who has neither ended nor been scheduled as far as is known."""
        assert not self.wrong, self.wrong
        num_waiting = len(self._waiting) if self._limits.is_bounded else 0
        assert len(self.queue) == num_waiting, f"{len(self.queue)} counted by a front end, {num_waiting} wait"

    def attach(self, generation: int, num_blocks: int) -> None:
        """An engine is ready."""
        self._connect(generation)
        self.queue.attach(num_blocks)

    def engine_died(self) -> None:
        """The engine is gone: everything open ends, and what it still says is another life's."""
        failure = RequestFailedError("The engine died before the request was finished.", "engine_dead")
        self.outputs.end_all(FinishReason.ERROR, failure)
        self._connect(-1)

    def submit(self, asked: Asked, max_model_len: int) -> bool:
        """Take a request on, if there is an engine and room."""
        if self.generation < 0:
            self.reached["refused: no engine"] += 1
            return False
        if not self._admit(asked):
            return False
        for index, request_id in enumerate(asked.ids):
            num_prompt_tokens = len(asked.prompt) if asked.params.prompt_logprobs is not None else 0
            expected = asked.alone(index, max_model_len).reply()
            transcript = Transcript(request_id, expected, num_prompt_tokens)
            self.transcripts[request_id] = transcript
            sink = partial(self._take, transcript)
            self.outputs.register(SequenceRequest(request_id, index, list(asked.prompt), asked.params, sink))
        for message in asked.messages(self.generation, self._clock()):
            self._send(self.client_index, self.generation, self._encoder.request(message))
        return True

    def _admit(self, asked: Asked) -> bool:
        """Queue it if there is room, of which the model must say the same."""
        num_running = self.outputs.num_open - len(self._waiting)
        room = Room(self._limits, list(self._waiting.values()), self._limits.max_num_seqs - num_running)
        new = dict.fromkeys(asked.ids, len(asked.prompt))
        try:
            self.queue.admit(asked.ids, len(asked.prompt), is_held=bool(asked.num_grammar_tokens))
        except OverloadedError as error:
            if error.reason not in room.refusals(list(new.values())):
                self.wrong = self.wrong or f"{asked.name} was refused, and there is room: {error.reason}"
            self.reached["overrun"] += 1
            return False
        if room.must_refuse(list(new.values())):
            self.wrong = self.wrong or f"{asked.name} was let in, and the queue is full"
        self._waiting |= new
        return True

    def end(self, ids: Iterable[str], reason: FinishReason, error: RequestFailedError | None = None) -> list[str]:
        """End sequences from this side, and tell the core; those that were open."""
        ended = self.outputs.end(ids, reason, error)
        self._tell_core(ended, reason)
        return ended

    def receive(self, frames: Frames) -> EngineCoreOutputs | None:
        """A message from an engine; None for one that was dropped."""
        outputs = self._link.receive(frames)
        self.reached.update(f"front dropped: {reason}" for reason in self._link.num_dropped)
        self._link.num_dropped.clear()
        if outputs is None:
            return None
        assert outputs.generation == self.generation, "an output of another life of the engine"
        assert set(outputs.request_ids) <= self.transcripts.keys(), "a row of another front end"
        self.queue.saw(outputs)
        for request_id in (*outputs.scheduled_ids, *outputs.request_ids):
            self._waiting.pop(request_id, None)
        aborts = self.outputs.process(outputs)
        self._tell_core(aborts.stopped, FinishReason.STOP)
        self._tell_core(aborts.failed, FinishReason.ERROR)
        self.reached["stop string"] += len(aborts.stopped)
        return outputs

    def tell(self, message: object) -> None:
        """Send something else to the engine there is."""
        if self.generation >= 0:
            self._send(self.client_index, self.generation, self._encoder.request(message))  # type: ignore[arg-type]

    def _take(self, transcript: Transcript, delta: SequenceDelta) -> None:
        """What is wrong is kept: nothing that is raised here would come out."""
        if delta.finish_reason is not None:
            self.departed_at[delta.request_id] = self._clock()
        try:
            transcript.take(delta)
        except AssertionError as error:
            self.wrong = self.wrong or str(error)

    def _tell_core(self, ids: list[str], reason: FinishReason) -> None:
        if ids:
            self.queue.leaving(ids)
            self.queue.left(ids)
            for request_id in ids:
                self._waiting.pop(request_id, None)
            self.tell(AbortRequests(self.client_index, self.generation, ids, int(reason)))
