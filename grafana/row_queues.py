"""QUEUES: who waits for the engine, for what, and what keeps it from taking in more."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.colours import LOAD, WAITING
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import engine, highest, rate, server, total

QUEUES = Row(
    "Who waits",
    (
        Panel(
            "Running sequences",
            Says(
                "How large is the batch?",
                "sequences that are admitted and not released, by engine.",
                "even over engines; at max_num_seqs while others wait, that limit is what is short.",
                "Engine: Waiting sequences",
            ),
            (
                Query(
                    total(engine("vllm:num_requests_running"), "instance", "engine"),
                    "{{instance}} engine {{engine}}",
                ),
            ),
            page="scheduler",
        ),
        Panel(
            "Waiting sequences",
            Says(
                "How many wait, and for what?",
                "waiting sequences: for capacity, or deferred for something of their own such as a grammar.",
                "none for long.",
                "Requests: What sequences waited for",
            ),
            (Query(total(engine("vllm:num_requests_waiting_by_reason"), "reason"), "{{reason}}"),),
            colours=WAITING,
            page="scheduler",
            is_stacked=True,
        ),
        Panel(
            "Batch and queue",
            Says(
                "Does the batch fill when requests wait?",
                "running and waiting sequences of all engines on one axis.",
                "waiting only while running stands at its limit.",
                "Engine: What kept steps from taking in more",
            ),
            (
                Query(total(engine("vllm:num_requests_running")), "running"),
                Query(total(engine("vllm:num_requests_waiting")), "waiting"),
            ),
            colours=LOAD,
            page="scheduler",
        ),
        Panel(
            "Longest wait",
            Says(
                "Is somebody forgotten?",
                "how long the sequence that waits longest has waited until now, by engine.",
                "seconds at most. A line that climbs steadily: the first in the queue cannot be admitted.",
                "Engine: Waiting sequences",
            ),
            (
                Query(
                    highest(engine("vllm_obs_oldest_wait_seconds"), "instance", "engine"),
                    "{{instance}} engine {{engine}}",
                ),
            ),
            unit="s",
            levels=Levels(5, 30),
            page="scheduler",
        ),
        Panel(
            "Turned away",
            Says(
                "Are requests refused because too much is queued?",
                "requests a second that were turned away, by which limit of the queue.",
                "none. Refusing is better than letting all of them wait too long.",
                "Overview: Errors",
            ),
            (
                Query(
                    total(rate(server("vllm:admission_rejections_total", 'model_name=~"$model_name"')), "reason"),
                    "{{reason}}",
                ),
            ),
            unit="reqps",
            levels=Levels(0.1, 1),
            page="requests",
        ),
        Panel(
            "Sleep",
            Says(
                "Is every engine awake?",
                "the state that each engine is in.",
                "awake is lit. An engine that died is in none.",
                "Processes and telemetry: Restarts",
            ),
            (
                Query(
                    highest(engine("vllm:engine_sleep_state"), "instance", "engine", "sleep_state"),
                    "{{instance}} engine {{engine}} {{sleep_state}}",
                ),
            ),
            Kind.STATES,
            words={0: "no", 1: "in it"},
            page="processes",
        ),
        Panel(
            "Stalls",
            Says(
                "Did engines stand still?",
                "stalled engines over time, by the kind of process that holds them up.",
                "0 all the time.",
                "Processes and telemetry: Stalls by culprit",
            ),
            (Query(total(server("vllm_obs_stalled"), "role"), "held up by {{role}}"),),
            levels=Levels(1, 1),
            page="incidents",
        ),
    ),
)
