"""ENGINE: what steps are made of, what they take, and what keeps them from taking in more."""

from vllm_obs.grafana.board import Board, Row
from vllm_obs.grafana.colours import LOAD, PHASES, WAITING
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    average,
    buckets,
    engine,
    highest,
    mean,
    quantile,
    rate,
    server,
    spent,
    total,
)
from vllm_obs.grafana.row_verdict import LIMITS_PANEL, VERDICT

_STEP = engine("vllm_obs_step_seconds")
_FORWARD = engine("vllm_obs_step_seconds", 'phase="forward"')
_IDLE = engine("vllm_obs_engine_loop_seconds_total", 'state="idle"')

_TIME = Row(
    "Where the time goes",
    (
        Panel(
            "Where the engine's time goes",
            Says(
                "What does the engine do with its time?",
                "seconds a second in each phase of the step, and idle, as a mean over engines.",
                "forward is by far the largest part of what is not idle. "
                "Large schedule, sample or other parts are overhead that no faster model helps.",
                "Engine: Time of each phase",
            ),
            (
                Query(f"{spent(_STEP, 'phase')} / scalar(count({_IDLE}))", "{{phase}}"),
                Query(average(rate(_IDLE)), "idle"),
            ),
            unit="percentunit",
            colours=PHASES,
            page="profile",
            width=12,
            is_stacked=True,
        ),
        LIMITS_PANEL,
        Panel(
            "Time of each phase",
            Says(
                "How long does each phase of a step take?",
                "the chosen percentile of all steps, by phase.",
                "forward grows with the tokens of a step, the others hardly.",
                "Engine: Steps against the best of this machine",
            ),
            (Query(quantile(PERCENTILE, _STEP, "phase"), "{{phase}}"),),
            unit="s",
            colours=PHASES,
            page="profile",
            idle="no step",
        ),
        Panel(
            "Mean time of each phase",
            Says(
                "What does a step cost on average?",
                "seconds in a phase over steps, by phase.",
                "the sum is what one more token of every running sequence costs.",
                "Engine: Time of each phase",
            ),
            (Query(mean(_STEP, "phase"), "{{phase}}"),),
            unit="s",
            colours=PHASES,
            page="profile",
            idle="no step",
            is_stacked=True,
        ),
        Panel(
            "Steps against the best of this machine",
            Says(
                "Are steps slower than they need to be?",
                "the time of a step's workers over the least that as much took here; percentile of all steps.",
                "below 2. From 4 on something else takes the machine: other processes, heat, memory.",
                "Processes and telemetry: CPU of each process",
            ),
            (
                Query(quantile(PERCENTILE, engine("vllm_obs_step_floor_ratio")), "${percentile:text}"),
                Query(quantile("0.5", engine("vllm_obs_step_floor_ratio")), "median"),
            ),
            unit="suffix: ×",
            levels=Levels(2, 4),
            page="profile",
            idle="no step with a known floor",
        ),
        Panel(
            "Forward time",
            Says(
                "Do steps fall into kinds?",
                "steps a second by the time of their forward pass.",
                "one band for decode; a second one above it is prefill.",
                "Engine: Tokens of a step",
            ),
            (Query(buckets(_FORWARD), "{{le}}", has_exemplars=True),),
            Kind.HEAT,
            unit="s",
            page="profile",
            width=12,
        ),
        Panel(
            "Tokens of a step",
            Says(
                "How full are steps?",
                "steps a second by how many tokens they computed.",
                "a dense band at the number of running sequences; prefill lies above it, up to the token budget.",
                "Engine: Tokens of a mean step",
            ),
            (Query(buckets(engine("vllm:iteration_tokens_total")), "{{le}}"),),
            Kind.HEAT,
            unit="short",
            page="scheduler",
            width=12,
        ),
    ),
)

_WORK = Row(
    "Work",
    (
        Panel(
            "Steps",
            Says(
                "How often does the engine step, and do steps fail?",
                "steps a second by how they ended.",
                "answered only. A failed step ends all requests that were in it.",
                "Processes and telemetry: Incidents by cause",
            ),
            (Query(total(rate(engine("vllm_obs_steps_total")), "outcome"), "{{outcome}}"),),
            unit="suffix: steps/s",
            page="scheduler",
        ),
        Panel(
            "Tokens of a mean step",
            Says(
                "How many tokens does a step compute?",
                "tokens over steps, by engine.",
                "as near to the token budget as latency allows: larger steps cost less for each token.",
                "Engine: Where the engine's time goes",
            ),
            (
                Query(
                    mean(engine("vllm:iteration_tokens_total"), "instance", "engine"),
                    "{{instance}} engine {{engine}}",
                ),
            ),
            unit="suffix: tok",
            page="scheduler",
            idle="no step",
        ),
        Panel(
            "Wasted work",
            Says(
                "What is computed for nothing?",
                "rows and tokens a second for sequences that had left, been stopped or been aborted.",
                "close to nothing. Much of it: clients leave, or stop strings come early.",
                "Overview: Requests ended",
            ),
            (
                Query(total(rate(engine("vllm_obs_wasted_rows_total"))), "rows of sequences that left"),
                Query(total(rate(engine("vllm_obs_discarded_tokens_total"))), "tokens not delivered"),
            ),
            unit="suffix: /s",
            page="requests",
        ),
        Panel(
            "Arithmetic",
            Says(
                "How much does the model compute?",
                "estimated floating-point operations a second, without those of attention.",
                "compare with what the machine can do: the inspector's profile page has the measured limit.",
                "Engine: Memory traffic",
            ),
            (
                Query(
                    total(rate(engine("vllm_obs_estimated_flops_total")), "instance", "engine"),
                    "{{instance}} engine {{engine}}",
                ),
            ),
            unit="flops",
            page="profile",
        ),
        Panel(
            "Memory traffic",
            Says(
                "How much does the model read and write?",
                "estimated bytes a second: weights and cached keys and values read, keys and values written.",
                "decode is bound by reads: near the memory's bandwidth there is no more to gain.",
                "Engine: Arithmetic",
            ),
            (
                Query(total(rate(engine("vllm_obs_estimated_read_bytes_total"))), "read"),
                Query(total(rate(engine("vllm_obs_estimated_write_bytes_total"))), "written"),
            ),
            unit="Bps",
            page="profile",
        ),
        Panel(
            "Between processes",
            Says(
                "Does work get lost between processes?",
                "the chosen percentile of the time from sending to taking: requests to the core, tokens back.",
                "requests below one step (the core takes them between steps), outputs below a millisecond.",
                "Processes and telemetry: Event loop lag",
            ),
            (
                Query(
                    quantile(PERCENTILE, engine("vllm_obs_ipc_delay_seconds"), "direction"),
                    "{{direction}}",
                ),
            ),
            unit="s",
            page="processes",
            idle="nothing was sent",
        ),
    ),
)

_WAITING = Row(
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
            (Query(highest(engine("vllm:engine_sleep_state"), "sleep_state"), "{{sleep_state}}"),),
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

ENGINE = Board(
    "vllm-obs-engine",
    "Engine",
    "What the engine's steps are made of, how long they take, and what keeps them from taking in more.",
    (VERDICT, _TIME, _WORK, _WAITING),
)
