"""Loads what turns texts into tokens while the engines load, and takes them together once they are ready."""

import asyncio
import gc

from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.chat_template import load_chat_template
from vllm_obs.engine.frontend.tokenizer import load_tokenizer
from vllm_obs.engine.startup_phases import StartupPhases
from vllm_obs.server.schema_base import prepare_models
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.state import ApiServer, Engine
from vllm_obs.telemetry.memory_samples import MemorySamples

GRAMMARS_SECONDS = 10.0
"""How long the first request waits for what grammars need; it is there long before the engine is."""


async def load_engine(api: ApiServer, client: DPLBAsyncMPClient, phases: StartupPhases) -> Engine:
    """The engine once it is ready. ConfigError or StartupError when it cannot start."""
    config = api.config
    memory = MemorySamples(api.server.role, api.recorder)
    memory.added("prepare server", "libraries")  # and all before it, imports as well
    tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
    await asyncio.to_thread(tokenizer.prepare_texts)
    chat_template = load_chat_template(config.model, tokenizer)
    llm = AsyncLLM(config, client, tokenizer, api.recorder, api.client_index)
    await llm.inputs.prepare_grammars(GRAMMARS_SECONDS)
    await asyncio.to_thread(prepare_models, ChatCompletionRequest, CompletionRequest)
    phases.end("load tokenizer")
    memory.added("load tokenizer", "tokenizer")
    memory.placed("load tokenizer", {})  # what comes now is waiting
    _freeze_garbage()
    facts = await client.ready(api.server.startup_timeout)
    llm.start()
    phases.end("wait for engine")
    return Engine(llm, tokenizer, chat_template, min(facts, key=lambda each: each.max_model_len), client)


def _freeze_garbage() -> None:
    """All that is here stays: no collection looks at it again, which would hold up every stream for 0.1 s."""
    gc.collect()
    gc.freeze()
