"""From a parsed request to its reply: whole or streamed, aborted when the client goes."""

from typing import Any, Protocol

from fastapi import Request, Response

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.disconnect import until_disconnect
from vllm_obs.server.empty_fields import without_empty
from vllm_obs.server.generation import Generation
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.pushed_stream import PushedStream
from vllm_obs.server.reply_metrics import ReplyMetrics
from vllm_obs.server.schema_sampling import SamplingRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.stream_usage import StreamUsage
from vllm_obs.server.streamed_reply import StreamedReply
from vllm_obs.server.usage import Usage


class ReplyShape(Protocol):
    """How one API writes its replies."""

    def whole(self, choices: list[SequenceDelta], usage: Usage) -> dict[str, Any]:
        """The reply with all choices complete."""

    def streamed(self, generation: Generation, usage: StreamUsage) -> StreamedReply:
        """The events of the streamed reply."""


async def answer(
    http: Request, api: ApiServer, request: SamplingRequest, generation: Generation, shape: ReplyShape
) -> Response:
    """The reply, once it is ready to be sent; ClientGoneError when nobody waits for it any more."""
    usage = Usage(request.n, api.server.enable_prompt_tokens_details)
    is_enabled = api.server.enable_per_request_metrics
    metrics = ReplyMetrics(is_enabled, generation.num_choices, generation.arrived)
    if request.stream:
        stream_usage = StreamUsage(usage, metrics, request.stream_options, api.server.enable_force_include_usage)
        streamed = shape.streamed(generation, stream_usage)
        return PushedStream(streamed.frames(), generation, streamed.events, streamed.text_frames)
    try:
        choices = await until_disconnect(http.receive, generation.collect())
    finally:
        await generation.aclose()
    metrics.add(choices[0])
    reply = shape.whole(choices, usage) | {"metrics": metrics.fields()}
    return JsonReply(without_empty(reply) if api.server.omit_empty_fields else reply)
