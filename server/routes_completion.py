"""/v1/completions."""

from fastapi import APIRouter, Request, Response

from vllm_obs.server.answer import answer
from vllm_obs.server.body import read_body
from vllm_obs.server.completion_reply import CompletionShape
from vllm_obs.server.generation import Call, Generation, Prompt
from vllm_obs.server.generation_defaults import parse_generation
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.openapi import describe
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.state import ApiServer


def completion_router(api: ApiServer) -> APIRouter:
    """The route, bound to its server."""
    router = APIRouter(tags=["completions"])

    @router.post("/v1/completions", **describe(CompletionRequest, streams=True))
    async def create_completion(http: Request) -> Response:
        """Continue text or token ids."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_generation(CompletionRequest, body, api)
        model = api.served_name(request.model)
        call = Call.of(http.scope, request, model)
        head = ReplyHead.of(api, http.scope, "cmpl", "text_completion", model)
        call.check_num_sequences(api, len(request.prompt), request.n)
        prompts = await prompts_of(api, request)
        generation = await Generation.submit(api, call, prompts, request.params())
        shapes = LogprobShapes.of(api, request)
        return await answer(http, api, request, generation, CompletionShape(request, head, shapes))

    return router


async def prompts_of(api: ApiServer, request: CompletionRequest) -> list[Prompt]:
    """The prompts as the engine takes them: text, or ids where it is not to add its special tokens."""
    if request.add_special_tokens:
        return request.prompt
    return [
        await api.engine.llm.inputs.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        for prompt in request.prompt
    ]
