"""Offline inference: a model, prompts in, whole outputs back in order."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.beam_search import BeamLimits, BeamSearch, BeamSearchOutput, BeamSearchParams
from vllm_obs.engine.frontend.chat_template import ChatTemplate, load_chat_template
from vllm_obs.engine.frontend.input_processor import Prompt
from vllm_obs.engine.frontend.llm_chat import (
    ChatOptions,
    Conversations,
    for_template,
    listed_conversations,
    template_options,
)
from vllm_obs.engine.frontend.llm_embed import (
    EmbeddingRequestOutput,
    EmbedOptions,
    ScoringRequestOutput,
    embed_params,
    embeddings,
    pairs_to_score,
    scores,
)
from vllm_obs.engine.frontend.llm_engine import LLMEngine
from vllm_obs.engine.frontend.llm_prompts import (
    ParamsOrList,
    Prompts,
    params_for_each,
    plain_prompts,
    priorities_for_each,
)
from vllm_obs.engine.frontend.outputs import CompletionOutput, RequestOutput
from vllm_obs.engine.frontend.template_file import read_template
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.generation_defaults import SAMPLING_DEFAULTS
from vllm_obs.engine.sampling_params import SamplingParams

MakeBar = Callable[..., Any]
ProgressBar = bool | MakeBar
"""Whether a bar shows progress, or what makes one (as `tqdm.tqdm` does)."""


class LLM:
    """A model in this process. Keywords are those of `vllm-obs serve`, with underscores.

    Use it as a context manager, or call `shutdown`, to give its memory back.
    """

    def __init__(self, model: str | None = None, **engine_args: Any) -> None:
        try:
            args = EngineArgs(model=model, **engine_args)
        except TypeError as error:
            raise TypeError(f"LLM: {error}") from None
        config = args.create_engine_config()
        _check_one_engine(config.parallel)
        self.llm_engine = LLMEngine(config)
        self._chat_template = load_chat_template(self.llm_engine.config.model, self.llm_engine.tokenizer)
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompts,
        sampling_params: ParamsOrList = None,
        use_tqdm: ProgressBar = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Finish every prompt and return the outputs in the prompts' order.

        A prompt is text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}; `prompts` is one or
        several. `sampling_params` is one for all, or a list with one each; `priority` has one each (lower runs
        first, under the scheduling policy priority). ValueError when lengths differ.
        RequestError names a prompt that can never succeed; nothing has run then.
        """
        return self._run(plain_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Conversations,
        sampling_params: ParamsOrList = None,
        use_tqdm: ProgressBar = True,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each through the chat template; otherwise as `generate`."""
        template = self._template(options.get("chat_template"))
        keeps_parts = options.get("chat_template_content_format") == "openai"
        prompts: list[Prompt] = [
            template.encode(for_template(conversation, keeps_parts), **template_options(options))
            for conversation in listed_conversations(messages)
        ]
        return self._run(prompts, sampling_params, use_tqdm)

    def beam_search(
        self,
        prompts: Prompts,
        params: BeamSearchParams,
        use_tqdm: ProgressBar = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of every prompt, in the prompts' order; prompts as in `generate`.

        At most `concurrency_limit` prompts are searched at a time. RequestError for what cannot be searched.
        """
        encode = self.get_tokenizer().encode
        ids = [encode(prompt) if isinstance(prompt, str) else prompt for prompt in plain_prompts(prompts)]
        config = self.llm_engine.config.model
        limits = BeamLimits(config.max_logprobs, self.llm_engine.max_model_len)
        search = BeamSearch(params, self.get_tokenizer(), limits, self._continue)
        at_once = max(1, concurrency_limit or len(ids))
        slices = [ids[start : start + at_once] for start in range(0, len(ids), at_once)]
        with _bar(use_tqdm, len(slices) * params.max_tokens, "Beam search") as bar:
            return [output for part in slices for output in search.search(part, bar.update)]

    def embed(
        self, prompts: Prompts, use_tqdm: ProgressBar = True, **options: Unpack[EmbedOptions]
    ) -> list[EmbeddingRequestOutput]:
        """A vector of every prompt, in the prompts' order; prompts as in `generate`."""
        model = self.llm_engine.config.model
        params = embed_params(model, options)
        return embeddings(self._run(plain_prompts(prompts), params, use_tqdm), model, options)

    def score(
        self,
        queries: Prompts,
        documents: Prompts,
        use_tqdm: ProgressBar = True,
        truncate_prompt_tokens: int | None = None,
    ) -> list[ScoringRequestOutput]:
        """How alike texts are, by the cosine of their vectors: one query with every document, or pair by pair."""
        texts, num_queries = pairs_to_score(queries, documents)
        options: EmbedOptions = {"truncate_prompt_tokens": truncate_prompt_tokens}
        return scores(self._run(texts, embed_params(self.llm_engine.config.model, options), use_tqdm), num_queries)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What a prompt without parameters is sampled with."""
        generation = self.llm_engine.config.model.generation
        open_fields = {name: getattr(generation, name) for name in SAMPLING_DEFAULTS}
        return SamplingParams(**{name: value for name, value in open_fields.items() if value is not None})

    def shutdown(self) -> None:
        """End the engine; the object is of no use afterwards."""
        self.llm_engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _template(self, source: str | None) -> ChatTemplate:
        return self._chat_template if source is None else ChatTemplate(read_template(source), self.get_tokenizer())

    def _continue(self, prompts: list[list[int]], params: SamplingParams) -> list[CompletionOutput]:
        return [output.outputs[0] for output in self._run(list(prompts), params, use_tqdm=False)]

    def _run(
        self,
        prompts: list[Prompt],
        sampling_params: ParamsOrList,
        use_tqdm: ProgressBar,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        each = params_for_each(given, len(prompts))
        priorities = priorities_for_each(priority, len(prompts))
        ids = [str(self._num_requests + i) for i in range(len(prompts))]
        self._num_requests += len(prompts)
        try:
            for request_id, prompt, params, urgency in zip(ids, prompts, each, priorities, strict=True):
                self.llm_engine.add_request(request_id, prompt, params, urgency, stream=False)
            finished = self._finish(len(ids), use_tqdm)
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise
        return [finished[request_id] for request_id in ids]

    def _finish(self, num_requests: int, use_tqdm: ProgressBar) -> dict[str, RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        with _bar(use_tqdm, num_requests, "Processed prompts") as bar:
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    if output.finished:
                        finished[output.request_id] = output
                        bar.update()
        return finished


def _check_one_engine(parallel: ParallelConfig) -> None:
    if parallel.data_parallel_size > 1 and parallel.data_parallel_rank is None:
        raise ConfigError(
            f"LLM runs one engine, not data_parallel_size {parallel.data_parallel_size}: use `vllm-obs serve` for "
            "several, or run a program for each with its data_parallel_rank"
        )


def _bar(use_tqdm: ProgressBar, total: int, words: str) -> Any:
    """A bar, which shows nothing unless it is wanted."""
    if callable(use_tqdm):
        return use_tqdm(total=total, desc=words)
    from tqdm import tqdm

    return tqdm(total=total, desc=words, disable=not use_tqdm)
