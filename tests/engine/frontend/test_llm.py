"""LLM over an engine that repeats the prompt: order, forms of prompts, parameters for each."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from default_model import default_tokenizer
from scripted_client import EchoClient
from step_outputs import Row, logprobs, step_outputs

from vllm_obs.engine.errors import ConfigError, RequestError, RequestFailedError
from vllm_obs.engine.frontend import llm_engine
from vllm_obs.engine.frontend.llm import LLM
from vllm_obs.engine.frontend.outputs import Logprob
from vllm_obs.engine.sampling_params import SamplingParams


@pytest.fixture
def client() -> EchoClient:
    return EchoClient()


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, client: EchoClient) -> Iterator[LLM]:
    monkeypatch.setattr(llm_engine, "_inproc_client", lambda config, recorder: client)
    monkeypatch.setattr(llm_engine, "load_tokenizer", lambda config: default_tokenizer())
    with LLM(max_model_len=512, dtype="float32") as llm:
        yield llm
    assert client.was_shut_down


def one_token(max_tokens: int = 1) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def texts(outputs: Any) -> list[str]:
    return [output.outputs[0].text for output in outputs]


class CountingBar:
    """A progress bar that counts."""

    def __init__(self) -> None:
        self.total = self.count = 0

    def __call__(self, total: int, desc: str) -> "CountingBar":
        self.total = total
        return self

    def __enter__(self) -> "CountingBar":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self) -> None:
        self.count += 1


def test_outputs_are_in_the_prompts_order_whatever_ends_first(llm: LLM) -> None:
    prompts = [f"{word} x" for word in ("one", "two", "three", "four")]
    params = [one_token(n) for n in (7, 1, 5, 2)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [7, 1, 5, 2]
    assert all(output.finished for output in outputs)


@pytest.mark.parametrize(
    "prompts",
    ["Hello", ["Hello"], [19556], [[19556]], {"prompt": "Hello"}, [{"prompt_token_ids": [19556]}], ((19556,),)],
)
def test_a_prompt_has_many_forms(llm: LLM, prompts: Any) -> None:
    assert texts(llm.generate(prompts, one_token(), use_tqdm=False)) == ["Hello"]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], use_tqdm=False) == []


def test_parameters_must_be_as_many_as_prompts(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts and 1 sampling"):
        llm.generate(["a", "b"], [one_token()], use_tqdm=False)


def test_one_bad_prompt_lets_none_run(llm: LLM, client: EchoClient) -> None:
    for bad in ("", [49152], 5, [[]], {"image": 1}):
        with pytest.raises(RequestError):
            llm.generate(["Hello", bad], one_token(), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert client.get_output() is None


def test_a_failed_request_raises_and_leaves_nothing_behind(llm: LLM, client: EchoClient) -> None:
    client.failing = {17}
    with pytest.raises(RequestFailedError):
        llm.generate(["Hello", "!"], one_token(5), use_tqdm=False)
    assert client.get_output() is None
    assert texts(llm.generate("Hello", one_token(), use_tqdm=False)) == ["Hello"]


def test_a_chat_goes_through_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(conversation, one_token(), use_tqdm=False)
    assert output.prompt_token_ids[-9:] == [4093, 198, 6004, 2, 198, 1, 520, 9531, 198]
    assert len(llm.chat([conversation, conversation], one_token(), use_tqdm=False)) == 2


def test_a_prompt_with_more_than_text_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="'multi_modal_data'"):
        llm.generate({"prompt": "Hello", "multi_modal_data": {}}, one_token(), use_tqdm=False)


def test_priorities_go_with_their_prompts(llm: LLM, client: EchoClient) -> None:
    llm.generate(["Hello", "Hello"], one_token(), use_tqdm=False, priority=[3, -1])
    llm.generate("Hello", one_token(), use_tqdm=False)
    assert [request.priority for request in client.added] == [3, -1, 0]
    with pytest.raises(ValueError, match="1 prompts and 2 priorities"):
        llm.generate("Hello", one_token(), use_tqdm=False, priority=[1, 2])


def test_the_options_of_a_chat_reach_its_template(llm: LLM) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
        "{{ tools[0].function.name if tools }}{{ mood }}{{ '>' if add_generation_prompt }}"
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    conversation = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "hi"},
    ]

    def prompt(**options: Any) -> str:
        (output,) = llm.chat(conversation, one_token(), use_tqdm=False, **options)
        return llm.get_tokenizer().decode(output.prompt_token_ids)

    asked = {"tools": [{"function": {"name": "get"}}], "chat_template_kwargs": {"mood": "!"}}
    assert prompt(chat_template=template, **asked) == "system=a\nb;assistant=;user=hi;get!>"
    assert prompt(chat_template=template, add_generation_prompt=False) == "system=a\nb;assistant=;user=hi;"
    assert prompt(chat_template=template, continue_final_message=True).endswith("user=hi")
    parts = "{% for p in messages[0].content %}{{ p.text or p }},{% endfor %}"
    assert prompt(chat_template=parts, chat_template_content_format="openai") == "a,b,"
    arguments = "{{ messages[1].tool_calls[0].function.arguments.x + 1 }}"
    assert prompt(chat_template=arguments) == "2"


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        ["hi"],
        [[]],
        [{"content": "hi"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]],
    ],
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError) as refused:
        llm.chat(messages, one_token(), use_tqdm=False)
    assert refused.value.param == "messages"


def test_max_tokens_beyond_the_context_is_cut(llm: LLM) -> None:
    (output,) = llm.generate([[19556] * 500], one_token(10_000), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 12


def test_a_bar_shows_progress_unless_switched_off(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["Hello"], one_token(), use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate(["Hello"], one_token())
    assert "Processed prompts: 100%" in capsys.readouterr().err


def test_a_bar_can_be_ones_own(llm: LLM) -> None:
    bar = CountingBar()
    llm.generate(["Hello"] * 3, one_token(), use_tqdm=bar)
    assert (bar.total, bar.count) == (3, 3)


def test_unknown_keywords_and_models_are_named() -> None:
    with pytest.raises(TypeError, match="no_such_flag"):
        LLM(no_such_flag=1)
    with pytest.raises(ConfigError, match="no such model"):
        LLM("/no/such/model.gguf")


def test_logprobs_have_vllms_shape(llm: LLM, client: EchoClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> Any:
        row = Row(client.added[-1].request_id, [905], 1)
        row.logprobs = logprobs([(905, -0.5), (905, -0.5), (17, -2.0)])
        row.prompt_logprobs = logprobs([(905, -3.0)], rank=9)
        return step_outputs(row)

    monkeypatch.setattr(client, "get_output", answer)
    params = SamplingParams(logprobs=2, prompt_logprobs=0)
    (output,) = llm.generate([[19556, 905]], params, use_tqdm=False)
    assert output.outputs[0].logprobs == [{905: Logprob(-0.5, 1, " world"), 17: Logprob(-2.0, 2, "!")}]
    assert output.outputs[0].cumulative_logprob == -0.5
    assert output.prompt_logprobs == [None, {905: Logprob(-3.0, 9, " world")}]


def test_no_front_end_loads_torch_or_transformers() -> None:
    program = (
        "import sys\n"
        "import vllm_obs.engine.frontend.llm, vllm_obs.engine.frontend.async_llm\n"
        "print([name for name in ('torch', 'transformers', 'tqdm') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_package_offers_llm_and_its_parameters_without_loading_them() -> None:
    program = (
        "import sys, vllm_obs\n"
        "print([name for name in sys.modules if name.startswith('vllm_obs.')])\n"
        "from vllm_obs import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams\n"
        "print(LLM.__module__, SamplingParams.__module__, hasattr(vllm_obs, 'Nothing'))\n"
        "print(BeamSearchParams.__module__, StructuredOutputsParams.__module__)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == [
        "[]",
        "vllm_obs.engine.frontend.llm vllm_obs.engine.sampling_params False",
        "vllm_obs.engine.frontend.beam_search vllm_obs.engine.structured.params",
    ]


def test_several_engines_are_not_for_one_program() -> None:
    with pytest.raises(ConfigError, match="one engine, not data_parallel_size 2: use `vllm-obs serve`"):
        LLM(data_parallel_size=2)
