"""TELEMETRY: whether what all boards show can be trusted."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.panel import Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    highest,
    rate,
    server,
    total,
)

_PROCESS = ("instance", "role", "rank")
_PROCESS_NAME = "{{instance}} {{role}} {{rank}}"
_LOSS = Levels(0.001, 1)


def _losses(title: str, expr: str, legend: str, says: Says) -> Panel:
    return Panel(title, says, (Query(expr, legend),), unit="suffix: /s", levels=_LOSS, page="processes", width=6)


TELEMETRY = Row(
    "Can the boards be trusted?",
    (
        _losses(
            "Records lost",
            total(rate(server("vllm_obs_recorder_lost_records_total")), *_PROCESS),
            _PROCESS_NAME,
            Says(
                "Does the Observer miss what happens?",
                "records a second that were overwritten unread, torn or never written, by process.",
                "0. Above it numbers are too small: lower the detail, or give the Observer more CPU.",
                "Processes and telemetry: CPU of the Observer",
            ),
        ),
        _losses(
            "Laws broken",
            total(rate(server("vllm_obs_invariant_violations_total")), "invariant"),
            "{{invariant}}",
            Says(
                "Do the numbers add up?",
                "how often a second a conservation law was found broken.",
                "0. Anything else is a bug, here or in the engine: please report it.",
                "Processes and telemetry: Records lost",
            ),
        ),
        _losses(
            "Spans dropped",
            total(rate(server("vllm_obs_dropped_spans_total")), "reason"),
            "{{reason}}",
            Says(
                "Are traces complete?",
                "spans a second that were made and not exported, by why.",
                "0. unreachable and refused: look at the endpoint. queue_full: it is too slow.",
                "Processes and telemetry: Exports failed",
            ),
        ),
        _losses(
            "Exports failed",
            total(rate(server("vllm_obs_exporter_failures_total")), "signal"),
            "{{signal}}",
            Says(
                "Does the OTLP endpoint take what is sent?",
                "exports a second that it did not take.",
                "0.",
                "Processes and telemetry: Spans dropped",
            ),
        ),
        _losses(
            "Spans not made",
            f"{total(rate(server('vllm_obs_over_budget_spans_total')))}"
            f" + {total(rate(server('vllm_obs_left_out_span_links_total')))}",
            "spans over budget and links left out",
            Says(
                "Is there more to trace than may be?",
                "spans a second over the budget, and links to steps that were left out.",
                "0. Otherwise sample fewer traces: those that there are stay whole.",
                "Processes and telemetry: Traced share",
            ),
        ),
        _losses(
            "Checkpoints failed",
            total(rate(server("vllm_obs_checkpoint_failures_total")), "instance"),
            "{{instance}}",
            Says(
                "Would counters survive the Observer?",
                "times a second that it could not save where it stands.",
                "0. Otherwise the disk of the run directory is full or gone.",
                "Processes and telemetry: CPU of the Observer",
            ),
        ),
        Panel(
            "Records read",
            Says(
                "How much is there to observe?",
                "records a second read from each process.",
                "it follows the load.",
                "Processes and telemetry: Records lost",
            ),
            (Query(total(rate(server("vllm_obs_recorder_records_total")), *_PROCESS), _PROCESS_NAME),),
            unit="suffix: /s",
            page="processes",
            width=6,
        ),
        Panel(
            "CPU of the Observer",
            Says(
                "What does observing cost?",
                "cores that the Observer uses, by server.",
                "below half a core; it is a process of its own and takes nothing from serving's loops.",
                "Processes and telemetry: Records read",
            ),
            (Query(total(rate(server("vllm_obs_telemetry_cpu_seconds_total")), "instance"), "{{instance}}"),),
            unit="suffix: cores",
            levels=Levels(0.5, 0.9),
            page="processes",
            width=6,
        ),
        Panel(
            "Trace detail",
            Says(
                "How much detail do traces have?",
                "the detail in force, 0 to 3, by server.",
                "1 in daily use, more while something is looked for.",
                "Processes and telemetry: Traced share",
            ),
            (Query(highest(server("vllm_obs_telemetry_detail_level"), "instance"), "{{instance}}"),),
            page="processes",
            width=6,
            most=3,
        ),
        Panel(
            "Traced share",
            Says(
                "Which share of requests is traced?",
                "the share of new traces that are sampled, by server.",
                "what was set; exemplars are there for these only.",
                "Requests: Time to first token",
            ),
            (Query(highest(server("vllm_obs_trace_sample_ratio"), "instance"), "{{instance}}"),),
            unit="percentunit",
            page="processes",
            width=6,
        ),
        Panel(
            "Scrape time",
            Says(
                "Are scrapes slow?",
                "how long Prometheus waits for /metrics, by server.",
                "below a tenth of the scrape interval.",
                "Processes and telemetry: CPU of the Observer",
            ),
            (Query(highest(server("scrape_duration_seconds"), "instance"), "{{instance}}"),),
            unit="s",
            levels=Levels(0.5, 2),
            page="processes",
            width=6,
        ),
        Panel(
            "Series",
            Says(
                "Does the number of series stay bounded?",
                "samples of a scrape, by server.",
                "flat once every route and account has been seen.",
                "Processes and telemetry: Scrape time",
            ),
            (Query(highest(server("scrape_samples_scraped"), "instance"), "{{instance}}"),),
            page="processes",
            width=6,
        ),
    ),
)
