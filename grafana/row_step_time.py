"""STEP_TIME: what the engine's steps are made of, and how long each part takes."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.colours import PHASES
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import PERCENTILE, average, buckets, engine, mean, quantile, rate, spent
from vllm_obs.grafana.row_verdict import LIMITS_PANEL

_STEP = engine("vllm_obs_step_seconds")
_FORWARD = engine("vllm_obs_step_seconds", 'phase="forward"')
_IDLE = engine("vllm_obs_engine_loop_seconds_total", 'state="idle"')

STEP_TIME = Row(
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
