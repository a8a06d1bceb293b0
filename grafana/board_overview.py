"""OVERVIEW: the verdict, whether promises are kept, then rate, errors and duration, then use and saturation."""

from vllm_obs.grafana.board import Board, Row
from vllm_obs.grafana.colours import BUSY, ENDINGS, LOAD, TOKENS
from vllm_obs.grafana.panel import Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    average,
    engine,
    highest,
    quantile,
    rate,
    server,
    total,
)
from vllm_obs.grafana.row_objectives import OBJECTIVES
from vllm_obs.grafana.row_verdict import VERDICT, VERDICT_HISTORY

_BAD_FRAMES = server("vllm_obs_bad_frames_total", 'reason!="unknown"')

_RATE = Row(
    "Rate and errors",
    (
        Panel(
            "Requests ended",
            Says(
                "How many requests a second end, and how?",
                "ended sequences a second by finish reason.",
                "stop and length. Aborts are clients that left: often because it was slow.",
                "Requests: HTTP requests by status",
            ),
            (Query(total(rate(engine("vllm:request_success_total")), "finished_reason"), "{{finished_reason}}"),),
            unit="reqps",
            colours=ENDINGS,
            page="requests",
            is_stacked=True,
        ),
        Panel(
            "Tokens",
            Says(
                "How much work is done?",
                "prompt tokens (computed or found) and generated tokens a second, over all engines.",
                "steady under a steady load; generated tokens fall when steps get slow or the batch small.",
                "Engine: Tokens of a step",
            ),
            (
                Query(total(rate(engine("vllm:prompt_tokens_total"))), "prompt"),
                Query(total(rate(engine("vllm:generation_tokens_total"))), "generated"),
            ),
            unit="suffix: tok/s",
            colours=TOKENS,
            page="overview",
        ),
        Panel(
            "Errors",
            Says(
                "What fails, and where?",
                "errors a second by where they showed and their kind; refusals of bad requests are in it. "
                "Messages between processes that were dropped are there by why, less aborts of what had ended.",
                "nothing but clients' mistakes (invalid_…). step, internal_error and stalled are the server's.",
                "Processes and telemetry: Incidents by cause",
            ),
            (
                Query(total(rate(server("vllm_obs_errors_total")), "where", "type"), "{{where}}: {{type}}"),
                Query(total(rate(_BAD_FRAMES), "reason"), "dropped message: {{reason}}"),
            ),
            unit="reqps",
            page="requests",
        ),
    ),
)


def _latency(title: str, metric: str, question: str, good: str, next_panel: str) -> Panel:
    series = engine(metric)
    return Panel(
        title,
        Says(
            question,
            "the median and the chosen percentile of all observations: buckets are added up first.",
            good,
            next_panel,
        ),
        (
            Query(quantile(PERCENTILE, series), "${percentile:text}", has_exemplars=True),
            Query(quantile("0.5", series), "median"),
        ),
        unit="s",
        page="requests",
        idle="no request ended",
    )


_DURATION = Row(
    "Duration",
    (
        _latency(
            "Time to first token",
            "vllm:time_to_first_token_seconds",
            "How long until users see something?",
            "below the promise; a percentile far above the median is queueing. Dots are traced requests.",
            "Overview: Queue time",
        ),
        _latency(
            "Between tokens",
            "vllm:inter_token_latency_seconds",
            "How fluently do tokens come?",
            "below 0.1 s, which is faster than people read. Spikes are long prefills or preemptions.",
            "Engine: Where the engine's time goes",
        ),
        _latency(
            "End to end",
            "vllm:e2e_request_latency_seconds",
            "How long do whole requests take?",
            "as long as their tokens take; compare with the number of tokens they ask for.",
            "Requests: Time in stages",
        ),
    ),
)

_USE = Row(
    "Use and saturation",
    (
        Panel(
            "Running and waiting",
            Says(
                "Is there more work than fits?",
                "sequences that are admitted, and that wait to be, over all engines.",
                "nobody waits for long. Waiting that grows is more load than this capacity.",
                "Engine: Waiting sequences",
            ),
            (
                Query(total(engine("vllm:num_requests_running")), "running"),
                Query(total(engine("vllm:num_requests_waiting")), "waiting"),
            ),
            colours=LOAD,
            page="scheduler",
        ),
        Panel(
            "KV cache in use",
            Says(
                "Does the KV cache limit the batch?",
                "the share of KV blocks that a sequence holds, by engine.",
                "below 90 %. Above it while requests wait, blocks are what is short.",
                "KV cache: Blocks by state",
            ),
            (
                Query(
                    highest(engine("vllm:kv_cache_usage_perc"), "instance", "engine"),
                    "{{instance}} engine {{engine}}",
                ),
            ),
            unit="percentunit",
            levels=Levels(0.9, 0.98),
            page="kv",
        ),
        Panel(
            "Queue time",
            Says(
                "How long do requests wait to be admitted?",
                "the chosen percentile of the time from the core's taking a sequence to its first step.",
                "close to nothing. A queue that grows here is felt as time to first token.",
                "Requests: What sequences waited for",
            ),
            (Query(quantile(PERCENTILE, engine("vllm:request_queue_time_seconds")), "${percentile:text}"),),
            unit="s",
            page="scheduler",
            idle="no request ended",
        ),
        Panel(
            "Engines busy",
            Says(
                "Have engines work all the time?",
                "the share of time with a step to do, by state, as a mean over engines.",
                "below 100 %: then there is room. Busy all the time with few running: see the step's phases.",
                "Engine: Where the engine's time goes",
            ),
            (Query(average(rate(engine("vllm_obs_engine_loop_seconds_total")), "state"), "{{state}}"),),
            unit="percentunit",
            colours=BUSY,
            page="scheduler",
            is_stacked=True,
        ),
        Panel(
            "Preemptions",
            Says(
                "Do running sequences lose their place?",
                "preemptions a second by what was short.",
                "none. Each throws away work that has to be done again.",
                "KV cache: Tokens lost to preemption",
            ),
            (Query(total(rate(engine("vllm_obs_preemptions_total")), "reason"), "{{reason}}"),),
            levels=Levels(0.1, 1),
            page="kv",
        ),
        Panel(
            "Busiest processes",
            Says(
                "Is a process short of CPU?",
                "cores that each process uses, by role and rank.",
                "the API server below one core: it has one event loop.",
                "Processes and telemetry: Event loop lag",
            ),
            (
                Query(
                    total(rate(server("vllm_obs_process_cpu_seconds_total")), "role", "rank"),
                    "{{role}} {{rank}}",
                ),
            ),
            unit="suffix: cores",
            page="processes",
        ),
    ),
)

OVERVIEW = Board(
    "vllm-obs-overview",
    "Overview",
    "The verdict first, whether promises are kept, then rate, errors and duration, then what is in use.",
    (VERDICT, VERDICT_HISTORY, OBJECTIVES, _RATE, _DURATION, _USE),
)
