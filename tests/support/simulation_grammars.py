"""The simulation's grammars: any so many tokens that are even, or odd; compiled when the history says so."""

from collections.abc import Callable
from random import Random
from typing import Any

from simulation_model import mask_word
from simulation_worker import Excuse
from simulation_world import World

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.structured.grammar_book import GrammarBook

REASON_OF_FAULT = {"begin": "unsupported", "mask": "internal_error", "accept": "internal_error"}
"""How a sequence ends whose grammar breaks there."""


class SimulatedGrammar:
    """Any `length` tokens that are even (odd, if the length is); ready when the history says so.

    `fault` is where it breaks: begin, mask, accept, or empty for nowhere.
    """

    def __init__(self, length: int, fault: str) -> None:
        self.is_ready = False
        self._length = self._num_left = length
        self._fault = fault

    @property
    def is_over(self) -> bool:
        return self._num_left <= 0

    def begin(self) -> None:
        if self._fault == "begin":
            raise RequestError("There is no such grammar.", reason="unsupported")

    def write_mask(self, words: Any, address: int) -> None:
        if self._fault == "mask":
            raise RuntimeError("a planted failure of a mask")
        words[:] = mask_word(self._length)

    def accept(self, token_id: int) -> None:
        self._num_left -= 1
        if token_id % 2 != self._length % 2 or self._fault == "accept":
            raise RequestFailedError("The output left its grammar.")


class SimulatedGrammars(GrammarBook):
    """The real book, whose grammars are compiled by nobody: `on_order` is told of each."""

    def __init__(
        self, world: World, draw: Random, excuse: Excuse, on_order: Callable[[SimulatedGrammar], None]
    ) -> None:
        super().__init__(world.config.model)
        self.excuse = excuse
        self.asking_id = ""
        """The sequence that the next order is for."""
        self._world = world
        self._draw = draw
        self._on_order = on_order

    def order(self, grammar: str) -> SimulatedGrammar:
        is_broken = self._draw.random() < self._world.faults.grammar
        fault = self._draw.choice(tuple(REASON_OF_FAULT)) if is_broken else ""
        if is_broken:
            self.excuse(self.asking_id, REASON_OF_FAULT[fault])
        made = SimulatedGrammar(int(grammar.partition(":")[2]), fault)
        self._on_order(made)
        return made
