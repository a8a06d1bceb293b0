"""How a server is, by its processes' headers alone, and which probes that fails."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import StallBegun
from vllm_obs.telemetry.routes_probe import is_all_stalled, phase_of
from vllm_obs.telemetry.watchdog_rule import ProcessLook


def look(role: str, activity: Activity) -> ProcessLook:
    return ProcessLook(role, 7, -1, 1, 0, 0, 0, activity, 0)


CORE = look("EngineCore_DP0", Activity.WAITING)
SERVER = look("APIServer_0", Activity.SERVING)
BROKEN = look("APIServer_1", Activity.BROKEN)
LAUNCHER = look("Launcher", Activity.SERVING)
OTHER_CORE = look("EngineCore_DP1", Activity.WAITING)
STALL = StallBegun("0", "Worker_DP0_TP0_PP0", 7, 0, "executing", 3, "", "", 1, 2)
HANGS = STALL._replace(engine="", role="APIServer_0", rank=-1)


@pytest.mark.parametrize(
    ("looks", "is_stalled", "phase"),
    [
        ([], False, "dead"),
        ([CORE], False, "dead"),
        ([SERVER], False, "restarting"),
        ([BROKEN], False, "restarting"),
        ([look("APIServer_0", Activity.STARTING)], False, "loading"),
        ([look("APIServer_0", Activity.STARTING), CORE], False, "loading"),
        ([SERVER, look("APIServer_1", Activity.STARTING), CORE], False, "ready"),
        ([SERVER, CORE], False, "ready"),
        ([SERVER, CORE], True, "stalled"),
        ([BROKEN, CORE], False, "broken"),
        ([BROKEN, CORE], True, "stalled"),
        ([SERVER, BROKEN, CORE], False, "ready"),
        ([look("APIServer_0", Activity.STARTING), BROKEN, CORE], False, "broken"),
        ([LAUNCHER], False, "restarting"),
        ([LAUNCHER, CORE, look("APIServer_0", Activity.STARTING)], False, "loading"),
        ([look("Launcher", Activity.STARTING), SERVER, CORE], False, "loading"),
        ([look("Launcher", Activity.STOPPING), SERVER, CORE], False, "draining"),
        ([LAUNCHER, look("APIServer_0", Activity.STOPPING), SERVER, CORE], False, "ready"),
        ([look("APIServer_0", Activity.RESTARTING)], False, "restarting"),
        (
            [look("APIServer_0", Activity.RESTARTING), look("EngineCore_DP0", Activity.STARTING)],
            True,
            "restarting",
        ),
        ([look("APIServer_0", Activity.STOPPING), CORE], True, "draining"),
    ],
)
def test_the_headers_tell_how_a_server_is(looks: list[ProcessLook], is_stalled: bool, phase: str) -> None:
    assert phase_of(looks, is_stalled) == phase


@pytest.mark.parametrize(
    ("looks", "stalls", "is_stalled"),
    [
        ([SERVER, CORE], [], False),
        ([SERVER, CORE], [STALL], True),
        ([SERVER, CORE, OTHER_CORE], [STALL], False),
        ([SERVER, CORE, OTHER_CORE], [STALL, STALL._replace(engine="1")], True),
        ([SERVER, CORE, OTHER_CORE], [HANGS], True),
        ([SERVER, BROKEN, CORE, OTHER_CORE], [HANGS, STALL], False),
        ([LAUNCHER, SERVER, BROKEN, CORE], [HANGS], False),
        ([LAUNCHER, SERVER, BROKEN, CORE], [HANGS._replace(role="Launcher")], True),
    ],
)
def test_one_that_moves_goes_on_serving(
    looks: list[ProcessLook], stalls: list[StallBegun], is_stalled: bool
) -> None:
    assert is_all_stalled(looks, stalls) == is_stalled


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        run.api.doing(Activity.SERVING)
        yield run


def statuses(observer: ObserverChild) -> list[int]:
    return [observer.ask(path).status for path in ("/livez", "/startupz", "/readyz")]


def test_the_probes_follow_the_api_servers_word(run: ScriptedRun, tmp_path: Path) -> None:
    with observer_over(tmp_path, stall_timeout=3600) as observer:
        assert statuses(observer) == [200, 200, 200]
        assert observer.ask("/readyz").json == {"status": "ready"}
        for activity, expected in [
            (Activity.BROKEN, [200, 200, 503]),
            (Activity.RESTARTING, [200, 200, 503]),
            (Activity.STARTING, [200, 503, 503]),
            (Activity.STOPPING, [200, 200, 503]),
        ]:
            run.api.doing(activity)
            assert statuses(observer) == expected
        says = "the server is shutting down"
        assert observer.ask("/readyz").json == {
            "status": "draining",
            "error": {"message": says, "type": "draining", "code": 503},
        }
        run.api.doing(Activity.SERVING)
        run.core.close()
        assert statuses(observer) == [200, 200, 503]
        assert observer.ask("/livez").json == {"status": "restarting"}
        run.api.close()
        assert statuses(observer) == [503, 503, 503]


def test_a_stalled_engine_is_alive_and_not_ready(run: ScriptedRun, tmp_path: Path) -> None:
    run.submit("waits")
    run.core.doing(Activity.EXECUTING)
    with observer_over(tmp_path, stall_timeout=1) as observer:
        deadline = time.monotonic() + 20
        while observer.ask("/readyz").status == 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert statuses(observer) == [200, 200, 503]
        assert observer.ask("/livez").json == {"status": "stalled"}
