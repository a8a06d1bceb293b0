"""ENGINE_WORK: what the engine computes, and what of it for nothing."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.panel import Panel, Query, Says
from vllm_obs.grafana.promql import PERCENTILE, engine, mean, quantile, rate, total

ENGINE_WORK = Row(
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
                "rows and tokens a second for sequences that had left, been stopped or been aborted, and on a GPU "
                "rows that fill up a CUDA graph's batch.",
                "close to nothing. Much of it: clients leave, or stop strings come early. Many empty rows: "
                "`--cudagraph-capture-sizes` can name the sizes that steps have.",
                "Overview: Requests ended",
            ),
            (
                Query(total(rate(engine("vllm_obs_wasted_rows_total"))), "rows of sequences that left"),
                Query(total(rate(engine("vllm_obs_discarded_tokens_total"))), "tokens not delivered"),
                Query(total(rate(engine("vllm_obs_padded_tokens_total"))), "empty rows of CUDA graphs"),
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
            "Forward passes",
            Says(
                "Do decodes run as CUDA graphs?",
                "forward passes a second of all ranks: as a graph, or eagerly, by why.",
                "on a GPU mostly graph while nothing but decodes runs; prompts run eagerly.",
                "Engine: Padding of CUDA graphs",
            ),
            (Query(total(rate(engine("vllm_obs_forward_passes_total")), "execution"), "{{execution}}"),),
            unit="suffix: passes/s",
            page="scheduler",
        ),
        Panel(
            "Padding of CUDA graphs",
            Says(
                "What do CUDA graphs compute for nothing?",
                "tokens a second of rows that steps lacked to fill their graphs.",
                "below an eighth of the tokens of steps; none on a CPU.",
                "Engine: Forward passes",
            ),
            (Query(total(rate(engine("vllm_obs_padded_tokens_total"))), "padding"),),
            unit="suffix: tok/s",
            page="scheduler",
        ),
        Panel(
            "GPUs busy with steps",
            Says(
                "How many GPUs do steps keep busy?",
                "seconds a second that GPUs were busy with steps, by engine, over its ranks.",
                "near the number of ranks under load. Less: they wait for the host. None on a CPU.",
                "Engine: Where the engine's time goes",
            ),
            (
                Query(
                    total(rate(engine("vllm_obs_step_device_seconds_total")), "instance", "engine"),
                    "{{instance}} engine {{engine}}",
                ),
            ),
            unit="suffix: GPUs",
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
