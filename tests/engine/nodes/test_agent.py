"""What an agent makes of a refusal, over sessions that are fakes: the end of it, or another try."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_process import KEY, cluster_config

from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.nodes import agent
from vllm_obs.engine.nodes.agent import Agent
from vllm_obs.engine.nodes.agent_session import AgentIdentity, AgentSession, Event, Events, Refused, Stopped
from vllm_obs.engine.nodes.cluster_key import ClusterKeys, key_pairs
from vllm_obs.engine.nodes.node_messages import Refusal
from vllm_obs.telemetry.recorder import NullRecorder

FOR_NOW = Refused("Node_1 is there already", is_final=False)

SILENCE = None

MakeAgent = Callable[[list[Event | None], float], Agent]


class FakeSession:
    """A connection to which the next of `script` happens at once, nothing for SILENCE; the last repeats itself."""

    script: list[Event | None]

    def __init__(self, endpoint: str, keys: ClusterKeys, identity: AgentIdentity, events: Events) -> None:
        event = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if event is not SILENCE:
            events.put(event)

    def close(self) -> None:
        return


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MakeAgent]:
    """`make(script, node_timeout)`: an agent to whose sessions this happens, which tries again soon."""
    monkeypatch.setenv("VLLM_OBS_CLUSTER_KEY", KEY)
    monkeypatch.setattr(agent, "AgentSession", FakeSession)
    monkeypatch.setattr(agent, "RETRY_SECONDS", 0.05)
    made: list[Agent] = []

    def agent_of(script: list[Event | None], node_timeout: float = 20.0) -> Agent:
        monkeypatch.setattr(FakeSession, "script", script, raising=False)
        config = cluster_config(node_timeout=node_timeout)
        config = replace(config, parallel=replace(config.parallel, node_rank=1), run_dir=str(tmp_path))
        made.append(Agent(config, NullRecorder()))
        return made[-1]

    yield agent_of
    for each in made:
        each.close()


def test_a_refusal_for_now_is_followed_by_another_try(make: MakeAgent) -> None:
    assert make([FOR_NOW, FOR_NOW, Stopped()], 20.0).run() == 0


def test_a_refusal_for_now_is_told_when_the_time_is_over(make: MakeAgent) -> None:
    with pytest.raises(StartupError, match=r"did not take this host in 0.3 s: Node_1 is there already") as raised:
        make([FOR_NOW], 0.3).run()
    assert raised.value.exit_code == 70


def test_the_last_refusal_is_told_when_the_next_answer_is_late(make: MakeAgent) -> None:
    agent_of = make([FOR_NOW, SILENCE], 0.3)
    with pytest.raises(StartupError, match=r"did not take this host in 0.3 s: Node_1 is there already"):
        agent_of.run()


def test_a_final_refusal_is_the_end(make: MakeAgent) -> None:
    with pytest.raises(ConfigError, match=r"refuses this host: no"):
        make([FOR_NOW, Refused("no"), Stopped()], 20.0).run()


def test_an_order_to_end_does_not_wait_for_the_next_try(make: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "RETRY_SECONDS", 10.0)
    agent_of = make([FOR_NOW], 20.0)
    agent_of.events.put(FOR_NOW)
    agent_of.events.put(Stopped())
    begun = time.monotonic()
    assert agent_of.run() == 0
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize("is_final", [True, False])
def test_a_session_hands_on_whether_a_refusal_is_final(is_final: bool) -> None:
    events: Events = Events()
    session = AgentSession("tcp://127.0.0.1:1", key_pairs(KEY), AgentIdentity(1, {}), events)
    try:
        session.take(b"", Refusal("no", is_final), b"")
        assert events.get(timeout=5.0) == Refused("no", is_final)
    finally:
        session.close()
