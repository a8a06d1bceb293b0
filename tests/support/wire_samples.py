"""One good message of every kind that crosses between processes, with something in every field."""

from typing import Any

import numpy as np
from bad_frames import sample_request

from vllm_obs.engine.executor import commands
from vllm_obs.engine.executor.plan_columns import pack_columns
from vllm_obs.engine.messages import (
    AbortRequests,
    Detours,
    EngineCoreOutputs,
    Logprobs,
    SamplingSpec,
    SchedulerStats,
    UtilityCall,
    UtilityResult,
)
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, NewRow, StepPlan, WorkerMoments
from vllm_obs.engine.profile_order import ProfileOrder


def int32(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def plain(value: Any) -> Any:
    """The value with arrays as (dtype, shape, list), so that whole messages compare."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist())
    if isinstance(value, tuple):
        return (type(value).__name__, *map(plain, value))
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def logprobs(num_positions: int, width: int = 3) -> Logprobs:
    shape = (num_positions, width)
    values = np.linspace(-9, 0, num_positions * width, dtype=np.float32).reshape(shape)
    return Logprobs(np.ones(shape, np.int32), values, np.ones(num_positions, np.int32))


def outputs(**fields: Any) -> EngineCoreOutputs:
    message = EngineCoreOutputs(
        client_index=0,
        engine_index=0,
        generation=3,
        step=9,
        request_ids=["a", "b"],
        num_new_tokens=[2, 0],
        new_token_ids=[5, 6],
        finish_reasons=[-1, 3],
        stop_token_ids=[-1, -1],
        num_cached_tokens=[4, 2**40],
        logprobs=[(0, logprobs(2))],
        prompt_logprobs=[(0, logprobs(2000))],
        errors=[(1, "invalid_logits", "not numbers")],
        timings=[(0, 3, 2**62)],
        detours=[(1, Detours(1, 2, 3, 2**62))],
        utility=UtilityResult(4, {"k": [1, None, True, "é", b"\x00"]}, ""),
        stats=SchedulerStats(1, 2, 0.5, 3),
        sampled_at=5,
        sent_at=6,
        pooled=[(0, np.ones(3, np.float32)), (1, np.linspace(-1, 1, 4096, dtype=np.float32))],
    )
    return message._replace(**fields)


def plain_outputs(num_rows: int) -> EngineCoreOutputs:
    """Of a step in which every sequence got one token and goes on."""
    message = outputs(
        request_ids=[f"r{row}" for row in range(num_rows)],
        num_new_tokens=[1] * num_rows,
        new_token_ids=[49_000 + row for row in range(num_rows)],
        finish_reasons=[-1] * num_rows,
        stop_token_ids=[-1] * num_rows,
        num_cached_tokens=[16 * row for row in range(num_rows)],
    )
    return message._replace(
        logprobs=[], prompt_logprobs=[], errors=[], timings=[], detours=[], pooled=[], utility=None
    )


def plan() -> StepPlan:
    row = NewRow("n", np.arange(3000, dtype=np.int32), 2900, SamplingSpec(), [4, 5], 16)
    return StepPlan(3, [row], ["a", "b", "c"], [[], [7, 8], []], [1, 2, 3], [-1, 5, -1], [100, 1, 1, 1], ["z"])


def execute_next() -> commands.ExecuteNext:
    """A plan told by call 1's, `plan()`, whose new row runs on."""
    told = StepPlan(4, [], [], [[], [7], [], []], [3, 4, 3000, 1], [-1] * 4, [9, 1, 1, 1, 1], [])
    new = NewRow("m", int32(1, 2), 2, SamplingSpec(), [9], 0)
    return commands.ExecuteNext(2, 1, 4, pack_columns(told), commands.RowChanges([0], ["y"], [new], ["a"]))


def answer() -> ModelRunnerOutput:
    moments = [WorkerMoments(0, 1, 2, 3, 4, 5)]
    failed = [("b", "invalid_logits", "no")]
    pooled = [("a", np.ones(2000, np.float32))]
    return ModelRunnerOutput(3, ["a"], [9], [("a", logprobs(1))], [("a", logprobs(700))], failed, moments, pooled)


REQUESTS: dict[str, Any] = {
    "add": sample_request(),
    "large add": sample_request(num_tokens=50_000, cache_salt=None),
    "empty add": sample_request(num_tokens=0),
    "abort": AbortRequests(0, 3, ["a", "b"], 2),
    "utility": UtilityCall(1, 3, 77, "reset", [1, "x", None, 1.5, [True], {"a": b"b"}]),
}
OUTPUTS: dict[str, Any] = {
    "outputs": outputs(),
    "bare outputs": outputs(utility=None, stats=None, errors=[]),
    "plain outputs": plain_outputs(3),
}
COMMANDS: dict[str, Any] = {
    "initialize": commands.InitializeCache(12),
    "execute": commands.ExecuteModel(1, plan()),
    "execute next": execute_next(),
    "execute the same rows": execute_next()._replace(changes=None),
    "sample": commands.SampleTokens(2, GrammarMasks(["a"], int32(1, 2).reshape(1, 2))),
    "bare sample": commands.SampleTokens(2, None),
    "profile": commands.Profile(4, ProfileOrder("p", "samples", "/nowhere", 0.5, 10), False),
    "executed": commands.Executed(3),
    "sampled": commands.Sampled(3, answer()),
    "profiled": commands.Profiled(4, True),
    "failed": commands.CallFailed(3, "why"),
    "peers missing": commands.PeersMissing(3, [0, 2], "rank 1 waited 12.0 s for rank 0"),
}
