"""Offline inference: a model, prompts in, whole outputs back in order."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.chat_template import Message, load_chat_template
from vllm_obs.engine.frontend.input_processor import Prompt
from vllm_obs.engine.frontend.llm_engine import LLMEngine
from vllm_obs.engine.frontend.outputs import RequestOutput
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.sampling_params import SamplingParams

Prompts = str | Mapping[str, Any] | Sequence[Any]
ParamsOrList = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model in this process. Keywords are those of `vllm-obs serve`, with underscores.

    Use it as a context manager, or call `shutdown`, to give its memory back.
    """

    def __init__(self, model: str | None = None, **engine_args: Any) -> None:
        try:
            args = EngineArgs(model=model, **engine_args)
        except TypeError as error:
            raise TypeError(f"LLM: {error}") from None
        self.llm_engine = LLMEngine(args.create_engine_config())
        self._chat_template = load_chat_template(self.llm_engine.config.model, self.llm_engine.tokenizer)
        self._num_requests = 0

    def generate(
        self, prompts: Prompts, sampling_params: ParamsOrList = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Finish every prompt and return the outputs in the prompts' order.

        A prompt is text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}; `prompts` is one or
        several. `sampling_params` is one for all, or a list with one each (ValueError when the lengths differ).
        RequestError names a prompt that can never succeed; nothing has run then.
        """
        return self._run([_plain(prompt) for prompt in _listed(prompts)], sampling_params, use_tqdm)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling_params: ParamsOrList = None,
        use_tqdm: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each through the model's chat template; otherwise as `generate`.

        `template_options` are those of `ChatTemplate.render` (add_generation_prompt, tools…).
        """
        several = bool(messages) and isinstance(messages[0], list)
        conversations: list[Any] = list(messages) if several else [messages]
        prompts: list[Prompt] = [
            self._chat_template.encode(conversation, **template_options) for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def shutdown(self) -> None:
        """End the engine; the object is of no use afterwards."""
        self.llm_engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _run(self, prompts: list[Prompt], sampling_params: ParamsOrList, use_tqdm: bool) -> list[RequestOutput]:
        each = _params_for_each(sampling_params, len(prompts))
        ids = [str(self._num_requests + i) for i in range(len(prompts))]
        self._num_requests += len(prompts)
        try:
            for request_id, prompt, params in zip(ids, prompts, each, strict=True):
                self.llm_engine.add_request(request_id, prompt, params, stream=False)
            finished = self._finish(len(ids), use_tqdm)
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise
        return [finished[request_id] for request_id in ids]

    def _finish(self, num_requests: int, use_tqdm: bool) -> dict[str, RequestOutput]:
        from tqdm import tqdm

        finished: dict[str, RequestOutput] = {}
        with tqdm(total=num_requests, desc="Processed prompts", disable=not use_tqdm) as bar:
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    if output.finished:
                        finished[output.request_id] = output
                        bar.update()
        return finished


def _listed(prompts: Prompts) -> list[Any]:
    """Several prompts as a list; one prompt (text, a dictionary, a flat list of ids) as a list of it."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    listed = list(prompts)
    return [listed] if listed and all(type(item) is int for item in listed) else listed


def _plain(prompt: Any) -> Prompt:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence):
        return list(prompt)
    raise RequestError("A prompt is text, a list of token ids, or a dictionary with one of them.", "prompt")


def _params_for_each(params: ParamsOrList, num_prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(f"There are {num_prompts} prompts and {len(params)} sampling parameters.")
    return list(params)
