"""REQUESTS: where the time of requests goes, what they ask for, and whose they are."""

from vllm_obs.grafana.board import Board, Row
from vllm_obs.grafana.colours import ENDINGS, STAGES
from vllm_obs.grafana.panel import Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    engine,
    mean,
    of_part,
    quantile,
    rate,
    server,
    total,
)
from vllm_obs.grafana.row_http import HTTP
from vllm_obs.grafana.row_latency import LATENCY, heat
from vllm_obs.grafana.row_verdict import VERDICT

_STAGE = engine("vllm_obs_request_stage_seconds")
_STAGE_SUMS = rate(engine("vllm_obs_request_stage_seconds_sum"))

_STAGES = Row(
    "Where the time goes",
    (
        Panel(
            "Time in stages",
            Says(
                "What do requests spend their time on?",
                "the share of each stage in the time of ended sequences; stages sum to the latency.",
                "green (decode) and blue (prefill). Red is waiting.",
                "Requests: What sequences waited for",
            ),
            (Query(of_part(_STAGE_SUMS, "stage"), "{{stage}}"),),
            unit="percentunit",
            colours=STAGES,
            page="requests",
            idle="no request ended",
            width=12,
            is_stacked=True,
        ),
        Panel(
            "What sequences waited for",
            Says(
                "Why do requests wait?",
                "time a second that ended sequences had waited, by reason: 1 is one of them all the time.",
                "nothing but step_in_progress, which is the rest of a running step.",
                "Engine: What kept steps from taking in more",
            ),
            (Query(total(rate(engine("vllm_obs_request_wait_seconds_total")), "reason"), "{{reason}}"),),
            unit="suffix: sequences",
            page="scheduler",
            width=12,
            is_stacked=True,
        ),
        Panel(
            "Slow stages",
            Says(
                "How long are stages for the unlucky?",
                "the chosen percentile of the time in each stage, of sequences that were in it.",
                "decode is longest. A stage that is not decode and as long is the reason for the tail.",
                "Requests: Mean time in stages",
            ),
            (Query(quantile(PERCENTILE, _STAGE, "stage"), "{{stage}}"),),
            unit="s",
            colours=STAGES,
            page="requests",
            idle="no request ended",
            width=12,
        ),
        Panel(
            "Mean time in stages",
            Says(
                "And on average?",
                "time in a stage over sequences that were in it.",
                "far from the panel before: then few are slow. Close to it: all are.",
                "Requests: Time in stages",
            ),
            (Query(mean(_STAGE, "stage"), "{{stage}}"),),
            unit="s",
            colours=STAGES,
            page="requests",
            idle="no request ended",
            width=12,
        ),
    ),
)


_SIZES = Row(
    "What they ask for",
    (
        heat(
            "Prompt lengths",
            "vllm:request_prompt_tokens",
            Says(
                "How long are prompts?",
                "ended sequences a second by prompt tokens.",
                "what was planned for. Longer ones take blocks and prefill time.",
                "KV cache: Computed for each prompt",
            ),
            unit="short",
        ),
        heat(
            "Answer lengths",
            "vllm:request_generation_tokens",
            Says(
                "How long are answers?",
                "ended sequences a second by the tokens their clients got.",
                "what was planned for. Each token is a step's time.",
                "Requests: Asked for at most",
            ),
            unit="short",
        ),
        heat(
            "Asked for at most",
            "vllm:request_params_max_tokens",
            Says(
                "How much may answers grow?",
                "ended sequences a second by their max_tokens.",
                "not far above the answers; it costs nothing before it is used.",
                "Requests: Answer lengths",
            ),
            unit="short",
        ),
        Panel(
            "Endings",
            Says(
                "How do requests end?",
                "the share of each finish reason.",
                "stop. Many at length: answers are cut. Aborts: clients leave.",
                "Requests: HTTP requests by status",
            ),
            (
                Query(
                    of_part(rate(engine("vllm:request_success_total")), "finished_reason"),
                    "{{finished_reason}}",
                ),
            ),
            unit="percentunit",
            colours=ENDINGS,
            page="requests",
            idle="no request ended",
            is_stacked=True,
        ),
        Panel(
            "Answers of a request",
            Says(
                "Do requests ask for several answers?",
                "mean of n, and mean tokens of the longest answer of a request.",
                "n of 1, unless several are wanted: each is a sequence of its own.",
                "Requests: Answer lengths",
            ),
            (
                Query(mean(engine("vllm:request_params_n")), "n"),
                Query(mean(engine("vllm:request_max_num_generation_tokens")), "tokens of the longest"),
            ),
            page="requests",
            idle="no request ended",
        ),
        Panel(
            "Tokens per request",
            Says(
                "What is a typical request?",
                "prompt and generated tokens over ended sequences.",
                "steady. When it moves, latency and throughput move without any fault.",
                "Overview: Tokens",
            ),
            (
                Query(mean(engine("vllm:request_prompt_tokens")), "prompt"),
                Query(mean(engine("vllm:request_generation_tokens")), "generated"),
            ),
            unit="suffix: tok",
            page="requests",
            idle="no request ended",
        ),
    ),
)


_ACCOUNTS = Row(
    "Accounts",
    (
        Panel(
            "Step time by account",
            Says(
                "Who uses the engine?",
                "the requests' shares of step time, by account: 1 is an engine all the time.",
                "as it was agreed.",
                "KV cache: Block time by account",
            ),
            (Query(total(rate(server("vllm_obs_account_step_seconds_total")), "account"), "{{account}}"),),
            unit="suffix: engines",
            page="overview",
            idle="no request ended",
            is_stacked=True,
        ),
        Panel(
            "Tokens by account",
            Says(
                "What for?",
                "tokens a second of ended requests, by account and kind.",
                "much that is cached, nothing that is recomputed.",
                "Requests: Requests by account",
            ),
            (
                Query(
                    total(rate(server("vllm_obs_account_tokens_total")), "account", "kind"), "{{account}} {{kind}}"
                ),
            ),
            unit="suffix: tok/s",
            page="overview",
            idle="no request ended",
        ),
        Panel(
            "Requests by account",
            Says(
                "Whose requests fail?",
                "ended sequences a second by account and finish reason.",
                "no errors, few aborts.",
                "Requests: Endings",
            ),
            (
                Query(
                    total(rate(server("vllm_obs_account_requests_total")), "account", "finished_reason"),
                    "{{account}} {{finished_reason}}",
                ),
            ),
            unit="reqps",
            page="overview",
            idle="no request ended",
        ),
    ),
)

REQUESTS = Board(
    "vllm-obs-requests",
    "Requests",
    "Where the time of requests goes, stage by stage, what they ask for, and whose they are.",
    (VERDICT, _STAGES, LATENCY, _SIZES, HTTP, _ACCOUNTS),
)
