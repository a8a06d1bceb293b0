"""CoreAdmission: what a sequence must meet before the scheduler has it, whatever its front end has checked."""

from vllm_obs.engine.core_queue import CoreQueue
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.engine.request import Request
from vllm_obs.engine.request_bounds import RequestBounds
from vllm_obs.engine.scheduler import Scheduler
from vllm_obs.engine.structured.grammar_book import GrammarBook

MAX_LIVE_REQUESTS = 65_536


class CoreAdmission:
    """Of sequences whose id nobody has."""

    def __init__(
        self, scheduler: Scheduler, queue: CoreQueue, bounds: RequestBounds, grammars: GrammarBook
    ) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._bounds = bounds
        self._grammars = grammars

    def admit(self, request: EngineCoreRequest) -> Request:
        """The sequence, which waits from now on, for its grammar too. RequestError where it may not."""
        if self._scheduler.num_live >= MAX_LIVE_REQUESTS:
            raise RequestError(f"The engine holds {MAX_LIVE_REQUESTS} requests.", reason="under_pressure")
        self._bounds.check(request)
        self._queue.require_room(len(request.prompt_token_ids))
        grammar = self._grammars.order(request.sampling.grammar) if request.sampling.grammar else None
        admitted = self._scheduler.add_request(request, grammar)
        self._queue.add(admitted.request_id, admitted.num_prompt_tokens, is_held=grammar is not None)
        return admitted
