"""Metrics against a made-up run of random chunks, preemptions and aborts whose truth is known."""

import random
from collections import Counter

import pytest
from metric_facts import DESCRIBED, MetricFacts


class RandomRun:
    """Sequences that come, run, are preempted and go as a seed says, and what should be counted of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.facts = MetricFacts()
        self.facts.describe()
        self.num_known: dict[str, int] = {}
        self.num_computed: dict[str, int] = {}
        self.max_tokens: dict[str, int] = {}
        self.num_made: Counter[str] = Counter()
        self.running: list[str] = []
        self.endings: Counter[str] = Counter()
        self.admitted: set[str] = set()
        self.num_scheduled = 0
        self.num_preemptions = 0
        self.prompts: dict[str, int] = {}
        self.highest: Counter[str] = Counter()

    def live(self) -> list[str]:
        return list(self.num_known)

    def turn(self) -> None:
        """One thing happens."""
        if self.random.random() < 0.3 and len(self.live()) < 12:
            self.arrive()
        elif self.live():
            self.step()
        if self.live() and self.random.random() < 0.1:
            self.leave(self.random.choice(self.live()), "abort")

    def arrive(self) -> None:
        name = f"r{len(self.prompts)}"
        prompt = self.random.randint(1, 60)
        self.prompts[name], self.max_tokens[name] = prompt, self.random.randint(1, 12)
        self.num_known[name], self.num_computed[name] = prompt, 0
        self.facts.submit(name, prompt, self.max_tokens[name])
        self.facts.take(name)

    def step(self) -> None:
        preempted = tuple(name for name in self.running if self.random.random() < 0.05)
        for name in preempted:
            self.running.remove(name)
            self.num_computed[name] = 0
        self.num_preemptions += len(preempted)
        rows = {
            name: self.random.randint(1, self.num_known[name] - self.num_computed[name])
            for name in self.live()
            if name not in preempted and self.random.random() < 0.7
        }
        for name, num_tokens in rows.items():
            self.compute(name, num_tokens)
        with_token = [name for name in rows if self.num_computed[name] == self.num_known[name]]
        number = self.facts.plan(rows, preempted=preempted)
        if not rows:
            return
        self.facts.answer(number, *with_token)
        for name in with_token:
            self.num_known[name] += 1
            self.num_made[name] += 1
            if self.num_made[name] == self.max_tokens[name]:
                self.leave(name, "length")

    def compute(self, name: str, num_tokens: int) -> None:
        if name not in self.running:
            self.running.append(name)
            self.admitted.add(name)
        self.num_computed[name] += num_tokens
        self.highest[name] = max(self.highest[name], self.num_computed[name])
        self.num_scheduled += num_tokens

    def leave(self, name: str, reason: str) -> None:
        """The core releases it and it ends."""
        self.facts.finish(name, reason)
        self.endings[reason] += 1
        del self.num_known[name]
        if name in self.running:
            self.running.remove(name)

    def counters(self) -> dict[str, float]:
        num_prompt_tokens = sum(min(self.highest[name], prompt) for name, prompt in self.prompts.items())
        return {
            "vllm:prompt_tokens_total": num_prompt_tokens,
            "vllm:prompt_tokens_by_source_total{source=local_compute}": num_prompt_tokens,
            "vllm:prefix_cache_queries_total": sum(self.prompts[name] for name in self.admitted),
            "vllm:generation_tokens_total": sum(self.num_made.values()),
            "vllm:iteration_tokens_total_sum": self.num_scheduled,
            "vllm:num_preemptions_total": self.num_preemptions,
            "vllm:request_success_total{finished_reason=abort}": self.endings["abort"],
            "vllm:request_success_total{finished_reason=length}": self.endings["length"],
            "vllm:e2e_request_latency_seconds_count": sum(self.endings.values()),
            "vllm:time_to_first_token_seconds_count": sum(count > 0 for count in self.num_made.values()),
            "vllm:inter_token_latency_seconds_count": sum(count - 1 for count in self.num_made.values()),
            "vllm_obs_recomputed_tokens_total": self.num_scheduled - sum(self.highest.values()),
        }

    def levels(self) -> dict[str, float]:
        num_blocks = sum(-(-self.num_computed[name] // DESCRIBED.block_size) for name in self.running)
        return {
            "vllm:num_requests_running": len(self.running),
            "vllm:num_requests_waiting": len(self.live()) - len(self.running),
            "vllm_obs_kv_blocks{state=active}": num_blocks,
            "vllm_obs_kv_tokens": sum(self.num_computed[name] for name in self.running),
        }


@pytest.mark.parametrize("seed", range(8))
def test_counters_and_levels_are_the_truth(seed: int) -> None:
    run = RandomRun(seed)
    for number in range(400):
        run.turn()
        if number % 100 == 99:
            shown = run.facts.samples("vllm")
            expected = run.counters() | run.levels()
            assert {name: shown.get(name, 0) for name in expected} == expected
    for name in run.live():
        run.leave(name, "abort")
    shown = run.facts.samples("vllm")
    assert {name: shown.get(name, 0) for name in run.levels()} == dict.fromkeys(run.levels(), 0)
    stages = sum(value for name, value in shown.items() if name.startswith("vllm_obs_request_stage_seconds_sum"))
    assert round(stages, 6) == round(shown["vllm:e2e_request_latency_seconds_sum"], 6)
    assert run.facts.state.invariants.num_broken == 0
