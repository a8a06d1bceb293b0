"""What a real Observer answered in several states of a server, kept as files; run as a script it takes them anew.

python tests/support/observer_states.py URL STATE
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vllm_obs.dashboard.source import Reading, Source
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

DATA = Path(__file__).parents[1] / "data" / "observer"
STATES = ("idle", "loading", "saturated", "stalled", "incident")
WINDOWS = ("10s", "1m", "5m", "run")
MAX_EACH = 6

Answers = dict[str, Any]
"""Path with its query → JSON, or {"error": {...}} with what the Observer refused."""


def answers_of(state: str) -> Answers:
    """All answers of one state."""
    loaded: Answers = json.loads(gzip.decompress((DATA / f"{state}.json.gz").read_bytes()))
    return loaded


class KeptSource(Source):
    """A source over kept answers; a query that was not asked then gets the answer of the path alone.

    `is_gone` makes it a server that went away after everything had been asked for once.
    """

    def __init__(self, answers: Answers, is_live: bool = True, is_gone: bool = False) -> None:
        super().__init__(lambda: "http://127.0.0.1:9", is_live)
        self.answers = answers
        self.is_gone = is_gone
        self.posted: list[tuple[str, Any]] = []
        self.post_answer = Reading({}, 0.0)

    def get(self, path: str, **query: Any) -> Reading:
        """The kept answer."""
        given = {name: value for name, value in query.items() if value is not None}
        found = self.answers.get(_key(path, given), self.answers.get(path))
        if found is None:
            return Reading(None, 0.0, f"nothing is kept of {path}", 404)
        if isinstance(found, dict) and set(found) == {"error"}:
            return Reading(None, 0.0, found["error"]["message"], found["error"]["code"])
        return Reading(found, 12.0, "the inspector does not answer", 0) if self.is_gone else Reading(found, 0.0)

    def post(self, path: str, body: Any, timeout_seconds: float = 5.0) -> Reading:
        """What the test says, once it is noted."""
        self.posted.append((path, body))
        return self.post_answer


def _key(path: str, query: dict[str, Any]) -> str:
    return "&".join([path, *(f"{name}={value}" for name, value in sorted(query.items()))])


def take(url: str) -> Answers:
    """Ask a live Observer for everything that pages may want."""
    inspector, answers = Inspector(url), Answers()

    def ask(path: str, **query: Any) -> Any:
        try:
            content = inspector.get(path, **query)
        except InspectorError as error:
            content = {"error": {"message": str(error), "code": error.status}}
        answers[_key(path, query)] = content
        answers.setdefault(path, content)
        return content

    for path in ("state", "slo", "invariants", "config", "version", "processes", "edges", "startup", "memory",
                 "telemetry", "blocks", "blocks/map", "blocks/summary", "blocks/trend", "queues"):  # fmt: skip
        ask(f"/inspect/{path}")
    for window in WINDOWS:
        ask("/inspect/quantiles", window=window)
        ask("/inspect/economics", window=window)
        if window != "run":
            ask("/inspect/verdict", window=window)
            ask("/inspect/utilisation", window=window)
    steps = ask("/inspect/steps", limit=120).get("steps", {}).get("step", [])
    for step in steps[-MAX_EACH:]:
        ask(f"/inspect/steps/{step}")
        ask(f"/inspect/steps/{step}/queue")
        ask("/inspect/blocks/map", step=step)
        ask("/inspect/blocks/summary", step=step, engine="0")
    requests = ask("/inspect/requests", limit=200).get("requests", [])
    for state in ("live", "waiting", "running", "ended"):
        requests = ask("/inspect/requests", state=state, limit=200).get("requests", [])[:2] + requests
    ask("/inspect/requests", failed_only="true", limit=200)
    for request_id in dict.fromkeys(row["request_id"] for row in requests[:MAX_EACH]):
        ask(f"/inspect/requests/{quote(request_id)}")
        ask(f"/inspect/requests/{quote(request_id)}/blocks")
        ask(f"/inspect/requests/{quote(request_id)}/cache")
    for row in ask("/inspect/incidents").get("incidents", [])[-2:]:
        ask(f"/inspect/incidents/{row['incident']}")
    for row in ask("/inspect/profiles").get("profiles", [])[:2]:
        ask(f"/inspect/profiles/{row['profile']}")
    return answers


def keep(state: str, answers: Answers) -> None:
    """Write them down, without where they were taken."""
    DATA.mkdir(parents=True, exist_ok=True)
    body = json.dumps(answers, separators=(",", ":"))
    for place, instead in _places(answers).items():
        body = body.replace(place, instead)
    (DATA / f"{state}.json.gz").write_bytes(gzip.compress(body.encode(), 9, mtime=0))


def _places(answers: Answers) -> dict[str, str]:
    """Folders of the machine, longest first → what stands for them."""
    observer = answers["/inspect/config"]["observer"]
    found = {
        str(Path(observer["run_dir"]).parent): "/run/vllm-obs",
        sys.prefix: "/opt/vllm-obs/venv",
        sys.base_prefix: "/usr",
        str(Path(__file__).parents[2]): "/opt/vllm-obs",
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


if __name__ == "__main__":
    keep(sys.argv[2], take(sys.argv[1]))
