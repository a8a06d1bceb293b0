"""What the clients of a simulated history ask for."""

from dataclasses import dataclass
from random import Random

import numpy as np
from simulation_model import NUM_EOS, NUM_TOKENS, Alone, spelled
from simulation_world import MS, World

from vllm_obs.engine.messages import EngineCoreRequest, SamplingSpec
from vllm_obs.engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class Asked:
    """One request of `params.n` sequences. `deadline_ns` is how long it may take, 0 for ever."""

    name: str
    client_index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    num_grammar_tokens: int
    priority: int
    cache_salt: str | None
    deadline_ns: int

    @property
    def ids(self) -> list[str]:
        """Its sequences' ids."""
        return [f"{self.name}-{index}" for index in range(self.params.n)]

    def alone(self, index: int, max_model_len: int) -> Alone:
        """One of its sequences, for the judge."""
        return Alone(self.prompt, self.params, index, self.eos_token_ids, self.num_grammar_tokens, max_model_len)

    def messages(self, generation: int, submitted_at: int) -> list[EngineCoreRequest]:
        """As a front end sends it."""
        params = self.params
        sampling = SamplingSpec(
            seed=params.seed or 0,
            max_tokens=params.max_tokens or 0,
            min_tokens=params.min_tokens,
            stop_token_ids=tuple(params.stop_token_ids or ()),
            eos_token_ids=self.eos_token_ids,
            logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
            grammar=f"parity:{self.num_grammar_tokens}" if self.num_grammar_tokens else "",
        )
        return [
            EngineCoreRequest(
                request_id=request_id,
                client_index=self.client_index,
                generation=generation,
                prompt_token_ids=np.array(self.prompt, np.int32),
                sampling=sampling._replace(sequence_index=index),
                priority=self.priority,
                cache_salt=self.cache_salt,
                submitted_at=submitted_at,
            )
            for index, request_id in enumerate(self.ids)
        ]


class Traffic:
    """Draws requests; most prompts begin as others do."""

    def __init__(self, world: World, draw: Random) -> None:
        self._world = world
        self._draw = draw
        self._bases = [[draw.randrange(NUM_TOKENS) for _ in range(world.max_model_len)] for _ in range(2)]

    def request(self, number: int) -> Asked:
        """The next one."""
        draw, world = self._draw, self._world
        prompt = self._prompt()
        max_tokens = draw.choice((0, 1, *range(2, 20)))
        if draw.random() < 0.9:
            max_tokens = min(max_tokens, max(world.num_slots - len(prompt), 1))
        num_grammar_tokens = draw.randint(1, 8) if max_tokens and draw.random() < 0.15 else 0
        ignore_eos = draw.random() < 0.5
        params = SamplingParams(
            n=draw.choice((1, 1, 1, 1, 2, 3)),
            seed=draw.randrange(5),
            ignore_eos=ignore_eos,
            max_tokens=max_tokens,
            min_tokens=draw.randint(0, min(3, max_tokens)),
            stop=self._stop_strings() if draw.random() < 0.3 else (),
            stop_token_ids=draw.sample(range(NUM_TOKENS), 60) if draw.random() < 0.3 else (),
            logprobs=0 if draw.random() < 0.2 else None,
            prompt_logprobs=0 if draw.random() < 0.1 else None,
        )
        return Asked(
            name=f"r{number}",
            client_index=draw.randrange(world.num_clients),
            prompt=prompt,
            params=params,
            eos_token_ids=() if ignore_eos else tuple(range(NUM_EOS)),
            num_grammar_tokens=num_grammar_tokens,
            priority=draw.randint(-1, 1),
            cache_salt=draw.choice((None, None, None, "salt")),
            deadline_ns=draw.randint(1, 60) * MS if draw.random() < 0.15 else 0,
        )

    def _prompt(self) -> tuple[int, ...]:
        draw, longest = self._draw, self._world.max_model_len - 1
        if draw.random() < 0.98:  # else it may be too long for the cache, and the core must refuse it
            longest = min(longest, self._world.num_slots // 2)
        shared = self._bases[draw.randrange(2)][: draw.randint(0, longest)]
        own = [draw.randrange(NUM_TOKENS) for _ in range(draw.randint(0, 4))]
        return tuple((shared + own)[:longest] or [7])

    def _stop_strings(self) -> tuple[str, ...]:
        letters = [spelled(self._draw.randrange(26)) for _ in range(25)]
        return letters[0], *(letters[place] + letters[place + 1] for place in range(1, 25, 2))
