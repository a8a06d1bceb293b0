"""FLEET_USE: what is in use and what is short, on servers of vLLM and of vllm-obs."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.colours import ENDINGS, LOAD, SOURCES, TOKENS, WAITING
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    average,
    buckets,
    engine,
    highest,
    mean,
    of_part,
    rate,
    server,
    share,
    total,
)

_RUNNING = engine("vllm:num_requests_running")
_WAITING = engine("vllm:num_requests_waiting")
_USAGE = engine("vllm:kv_cache_usage_perc")
_ENDED = engine("vllm:request_success_total")
_INSTANCE = "{{instance}}"
_ENGINE_NAME = "{{instance}} engine {{engine}}"

FLEET_USE = Row(
    "Use and saturation",
    (
        Panel(
            "Running and waiting",
            Says(
                "Is there more work than fits?",
                "running and waiting sequences of all engines.",
                "nobody waits for long.",
                "Fleet: Waiting by server",
            ),
            (Query(total(_RUNNING), "running"), Query(total(_WAITING), "waiting")),
            colours=LOAD,
            page="scheduler",
        ),
        Panel(
            "Waiting by server",
            Says(
                "Is the load spread evenly?",
                "waiting sequences by engine.",
                "alike. One that waits while others do not: the router sends it too much.",
                "Fleet: KV cache in use",
            ),
            (Query(total(_WAITING, "instance", "engine"), _ENGINE_NAME),),
            page="scheduler",
        ),
        Panel(
            "Waiting by reason",
            Says(
                "What do they wait for?",
                "waiting sequences: for capacity, or deferred.",
                "none for long.",
                "Fleet: KV cache in use",
            ),
            (Query(total(engine("vllm:num_requests_waiting_by_reason"), "reason"), "{{reason}}"),),
            colours=WAITING,
            page="scheduler",
            is_stacked=True,
        ),
        Panel(
            "KV cache in use",
            Says(
                "Is the KV cache full?",
                "the share of blocks held, by engine.",
                "below 90 %.",
                "Fleet: Preemptions",
            ),
            (Query(highest(_USAGE, "instance", "engine"), _ENGINE_NAME),),
            unit="percentunit",
            levels=Levels(0.9, 0.98),
            page="kv",
        ),
        Panel(
            "Preemptions",
            Says(
                "Do sequences lose their blocks?",
                "preemptions a second by engine.",
                "none.",
                "Fleet: KV cache in use",
            ),
            (Query(total(rate(engine("vllm:num_preemptions_total")), "instance", "engine"), _ENGINE_NAME),),
            levels=Levels(0.1, 1),
            page="kv",
        ),
        Panel(
            "Prefix hits",
            Says(
                "How much of the prompts was known already, by server?",
                "prompt tokens found over looked up.",
                "alike: one that is lower gets requests whose prefix is elsewhere.",
                "Fleet: Prompt tokens by source",
            ),
            (
                Query(
                    share(
                        total(rate(engine("vllm:prefix_cache_hits_total")), "instance"),
                        total(rate(engine("vllm:prefix_cache_queries_total")), "instance"),
                    ),
                    _INSTANCE,
                ),
            ),
            unit="percentunit",
            page="kv",
            idle="no prompt",
        ),
        Panel(
            "Prompt tokens by source",
            Says(
                "What did prompts cost?",
                "prompt tokens a second by where their keys and values came from.",
                "as little local_compute as possible.",
                "Fleet: Prefix hits",
            ),
            (Query(total(rate(engine("vllm:prompt_tokens_by_source_total")), "source"), "{{source}}"),),
            unit="suffix: tok/s",
            colours=SOURCES,
            page="kv",
            is_stacked=True,
        ),
        Panel(
            "Tokens by server",
            Says(
                "What does each server do?",
                "generated tokens a second by server.",
                "alike under a load that is spread.",
                "Fleet: Waiting by server",
            ),
            (Query(total(rate(engine("vllm:generation_tokens_total")), "instance"), _INSTANCE),),
            unit="suffix: tok/s",
        ),
        Panel(
            "Tokens of a step",
            Says(
                "How full are steps?",
                "steps a second by the tokens they computed.",
                "a dense band at the number of running sequences.",
                "Fleet: Running and waiting",
            ),
            (Query(buckets(engine("vllm:iteration_tokens_total")), "{{le}}"),),
            Kind.HEAT,
            page="scheduler",
            idle="no step",
        ),
        Panel(
            "Tokens per request",
            Says(
                "What is a typical request?",
                "prompt and generated tokens over ended sequences.",
                "steady.",
                "Fleet: End to end",
            ),
            (
                Query(mean(engine("vllm:request_prompt_tokens")), "prompt"),
                Query(mean(engine("vllm:request_generation_tokens")), "generated"),
            ),
            unit="suffix: tok",
            colours=TOKENS,
            page="requests",
            idle="no request ended",
        ),
        Panel(
            "Endings",
            Says(
                "How do requests end?",
                "the share of each finish reason.",
                "stop. Aborts: clients leave.",
                "Fleet: Requests ended",
            ),
            (Query(of_part(rate(_ENDED), "finished_reason"), "{{finished_reason}}"),),
            unit="percentunit",
            colours=ENDINGS,
            page="requests",
            idle="no request ended",
            is_stacked=True,
        ),
        Panel(
            "Since when servers run",
            Says(
                "Which server was started again?",
                "the time since its root process began.",
                "lines that grow.",
                "Fleet: CPU",
            ),
            (Query(f"time() - {highest(server('process_start_time_seconds'), 'instance')}", _INSTANCE),),
            unit="s",
            page="processes",
        ),
        Panel(
            "CPU",
            Says(
                "What do the root processes take?",
                "cores used by the root process of each server (not its engines).",
                "below one core: its event loop has no more.",
                "Fleet: Memory",
            ),
            (Query(total(rate(server("process_cpu_seconds_total")), "instance"), _INSTANCE),),
            unit="suffix: cores",
            levels=Levels(0.8, 0.95),
            page="processes",
        ),
        Panel(
            "Memory",
            Says(
                "Does memory grow?",
                "resident memory of the root process of each server.",
                "flat.",
                "Fleet: Since when servers run",
            ),
            (Query(highest(server("process_resident_memory_bytes"), "instance"), _INSTANCE),),
            unit="bytes",
            page="processes",
        ),
        Panel(
            "Awake",
            Says(
                "Are all engines awake?",
                "the share of engines that are awake.",
                "100 %.",
                "Fleet: Since when servers run",
            ),
            (Query(average(engine("vllm:engine_sleep_state", 'sleep_state="awake"')), "awake"),),
            unit="percentunit",
            levels=Levels(1, 0.5, is_low_bad=True),
            page="processes",
        ),
    ),
)
