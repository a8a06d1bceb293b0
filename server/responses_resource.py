"""The response object: what its request said, and how far it has come."""

from dataclasses import dataclass
from typing import Any

from vllm_obs.server.errors import ApiError
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.schema_responses_items import Item

Resource = dict[str, Any]

NOT_THERE = dict.fromkeys(
    ("prompt", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")
)
"""Fields of vLLM's replies that have no value here."""


@dataclass
class Progress:
    """How far a response has come; `completed_at` is in seconds of wall time."""

    status: str
    output: list[Item]
    usage: dict[str, Any] | None = None
    completed_at: int | None = None
    error: ApiError | None = None


@dataclass(frozen=True)
class ResourceHead:
    """What does not change while a response is made. `created_at` is in seconds of wall time."""

    id: str
    created_at: int
    model: str
    request: ResponsesRequest

    def resource(self, progress: Progress) -> Resource:
        """The whole object."""
        request = self.request
        is_cut = progress.status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": progress.completed_at,
            "status": progress.status,
            "error": _error(progress.error),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.model,
            "output": progress.output,
            "usage": progress.usage,
            "background": request.background,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": None if request.reasoning is None else request.reasoning.fields(),
            "safety_identifier": request.safety_identifier,
            "service_tier": "auto",
            "store": request.store,
            "temperature": request.temperature,
            "text": request.text.fields(),
            "tool_choice": "auto" if request.tool_choice is None else request.tool_choice.fields(),
            "tools": [tool.model_dump() for tool in request.tools],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": request.top_p,
            "truncation": request.truncation,
            "user": request.user,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            **NOT_THERE,
        }


def _error(error: ApiError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"code": "rate_limit_exceeded" if error.status == 429 else "server_error", "message": error.message}


def usage_fields(num_input: int, num_cached: int, num_output: int, num_reasoning: int) -> dict[str, Any]:
    """The `usage` of a response."""
    return {
        "input_tokens": num_input,
        "input_tokens_details": {
            "cached_tokens": num_cached,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": num_output,
        "output_tokens_details": {
            "reasoning_tokens": num_reasoning,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": num_input + num_output,
    }
