"""Keys, prompts and what clients put into their targets are in nothing that a server with everything on leaves."""

from collections.abc import Iterator

import pytest
from leaky_server import FOLDER, HIDDEN, KEYS, PROMPT, TARGET, WHILE_TWO_RUN, WRONG_KEY, Leaky, leaky_server

from vllm_obs.engine.core_files import NOBODYS_LIMIT


@pytest.fixture(scope="module")
def leaky() -> Iterator[Leaky]:
    """It has been asked all sorts of things, has been looked at from all sides, and its engine was killed."""
    with leaky_server() as found:
        yield found


def hidden_in(content: bytes) -> list[str]:
    """Those of the canaries that are in there."""
    return [canary for canary in HIDDEN if canary.encode() in content]


def test_the_search_finds_what_it_looks_for(leaky: Leaky) -> None:
    assert hidden_in((leaky.base / "keys").read_bytes()) == [KEYS[1]]
    assert any(b"text_completion" in message.SerializeToString() for message in leaky.receiver.traces)
    assert b'"num_running":2' in leaky.looks[WHILE_TWO_RUN].replace(b" ", b"")


def test_the_log_holds_none(leaky: Leaky) -> None:
    log = leaky.server.log.read_bytes()
    assert b'"POST /v1/completions HTTP/1.1" 200' in log
    assert b"GET /(unknown) HTTP/1.1" in log
    found = hidden_in(log)
    assert found == [], [line for line in log.splitlines() if hidden_in(line)][:3]


def test_no_file_of_the_run_holds_any(leaky: Leaky) -> None:
    """Rings, logs, stacks, checkpoint, incident with its recording; caches, what commands said and wrote."""
    files = [path for path in leaky.base.rglob("*") if path.is_file() and FOLDER not in path.parts]
    names = {path.name for path in files}
    assert {"recording", "said-by-incident", "APIServer_0.ring", "APIServer_0.log"} <= names
    assert any("incidents" in path.parts for path in files)
    assert {str(path): found for path in files if (found := hidden_in(path.read_bytes()))} == {
        str(leaky.base / "keys"): [KEYS[1]]
    }


def test_no_crash_would_leave_any_in_a_core_file(leaky: Leaky) -> None:
    assert len(leaky.core_limits) >= 3
    assert set(leaky.core_limits.values()) <= {0, NOBODYS_LIMIT}


def test_no_answer_about_the_server_holds_any(leaky: Leaky) -> None:
    assert {path: found for path, content in leaky.looks.items() if (found := hidden_in(content))} == {}


def test_no_span_holds_any(leaky: Leaky) -> None:
    sent = [*leaky.receiver.traces, *leaky.receiver.metrics]
    assert [found for message in sent if (found := hidden_in(message.SerializeToString()))] == []
    assert hidden_in(repr(leaky.receiver.headers).encode()) == []


def test_no_refusal_holds_a_key_or_a_place(leaky: Leaky) -> None:
    """A client may be told up to 64 characters of its own; nobody is told a key, or where the model lies."""
    assert len(leaky.refusals) > 10
    for text in [*leaky.refusals, *leaky.heads]:
        assert [canary for canary in (*KEYS, WRONG_KEY, FOLDER) if canary in text] == [], text
        assert sum(text.count(canary) * len(canary) for canary in (PROMPT, TARGET)) <= 64


def test_the_service_manager_hears_of_start_life_and_end(leaky: Leaky) -> None:
    assert leaky.told[0] == "STATUS=loading"
    assert leaky.told.count("READY=1") == 1
    assert leaky.told.count("WATCHDOG=1") >= 3
    assert leaky.told[-1] == "STOPPING=1"


def test_a_prompt_that_another_key_has_sent_is_computed_again(leaky: Leaky) -> None:
    *others, own = leaky.num_cached
    assert others == [0, 0]
    assert own >= 80


def test_metrics_and_spans_do_not_say_where_the_model_lies(leaky: Leaky) -> None:
    shown = [content for path, content in leaky.looks.items() if "metrics" in path]
    assert len(shown) >= 2
    spans = [message.SerializeToString() for message in leaky.receiver.traces]
    assert [content for content in (*shown, *spans) if FOLDER.encode() in content] == []
