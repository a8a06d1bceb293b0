"""AnswerWatch: whether the model still gives numbers, judged by each engine's last answers."""

import logging
import time
from collections.abc import Callable

from vllm_obs.engine.messages import EngineCoreOutputs

MAX_BROKEN_ANSWERS = 3
REST_SECONDS = 15.0
"""How long a broken model is left alone; then requests may try it again, and one more broken answer is enough."""

logger = logging.getLogger(__name__)


class AnswerWatch:
    """Told of every step's outputs. A model is broken that gave numbers to nobody, so many steps in a row.

    One token or vector for anybody mends it at once: a single request that breaks its own row breaks nothing else.
    Each engine has a model of its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_broken: dict[int, int] = {}
        self._rests_until: dict[int, float] = {}

    def is_broken(self, engine_index: int) -> bool:
        """Whether nobody should be sent to this engine's model now."""
        return self._clock() < self._rests_until.get(engine_index, 0.0)

    def saw(self, outputs: EngineCoreOutputs) -> None:
        """One step's outputs came."""
        if outputs.new_token_ids or outputs.pooled:
            if self._num_broken:
                self.forget(outputs.engine_index)
        elif outputs.errors and any(reason == "invalid_logits" for _, reason, _ in outputs.errors):
            engine = outputs.engine_index
            number = self._num_broken[engine] = self._num_broken.get(engine, 0) + 1
            if number >= MAX_BROKEN_ANSWERS:
                self._rests_until[engine] = self._clock() + REST_SECONDS
                logger.error("the model gave no numbers %d times in a row: not ready", number)

    def forget(self, engine_index: int) -> None:
        """Its model gives numbers, or is another one."""
        self._num_broken.pop(engine_index, None)
        self._rests_until.pop(engine_index, None)
