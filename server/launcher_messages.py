"""What the launcher and its API servers tell each other over their pipes: plain values, checked when read."""

from typing import Any, NamedTuple

from vllm_obs.engine.codec import read_fields, write_fields
from vllm_obs.engine.codec_arrays import ArrayReader
from vllm_obs.engine.frontend.crash_suspects import Suspect
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.phase import Phase

ENGINE = "ENGINE"
"""To the server: EngineNews."""
OPEN = "OPEN"
"""To the server: all are ready; let requests in."""
DRAIN = "DRAIN"
"""To the server: let nobody in, and finish."""
CUT_OFF = "CUT_OFF"
"""To the server: end what is still open, now."""
TELEMETRY = "TELEMETRY"
"""To the server: how much is to be traced from now on."""
PROFILE = "PROFILE"
"""To the server: take a profile."""
SUSPECTS = "SUSPECTS"
"""To the launcher: Suspects, open when an engine crashed, at last none; to the other servers: their digests."""
BLAMED = "BLAMED"
"""To the server: the digest of whom the last crash must be due to, of all open in any server; or None."""
RELOAD = "RELOAD"
"""To the server: look at the key file."""
STATUS = "STATUS"
"""To the launcher: ServerStatus."""
DRAINED = "DRAINED"
"""To the launcher: what was let in has ended; the exit code that comes of it."""

STARTING, SERVING, DEAD, EXPECTED, GIVEN_UP = "starting", "serving", "dead", "expected", "given up"
ENGINE_STATES = (STARTING, SERVING, DEAD, EXPECTED, GIVEN_UP)
MAX_CAUSE_CHARS = 512
MAX_SUSPECTS = 64
"""In one message."""
DIGEST_BYTES = 32
NUM_FIELDS = len(Suspect._fields)
MAX_MODEL_CHARS = 512


class EngineNews(NamedTuple):
    """What has become of an engine's life, whose process is `pid`.

    `cause` is why it died, and `is_its_own` whether what it was doing may have been at fault. Another is EXPECTED
    within `seconds`; where there is to be none it is GIVEN_UP. `facts` come with SERVING.
    """

    engine_index: int
    generation: int
    pid: int
    state: str
    cause: str = ""
    is_its_own: bool = False
    seconds: float = 0.0
    facts: EngineFacts | None = None

    def to_wire(self) -> list[Any]:
        """As plain values, small enough for one order: what only people want of the facts is left out."""
        facts = self.facts and self.facts._replace(model=self.facts.model[:MAX_MODEL_CHARS], phases=[])
        return write_fields(self._replace(cause=self.cause[:MAX_CAUSE_CHARS], facts=facts))

    @classmethod
    def read(cls, payload: Any) -> "EngineNews":
        """The news in plain values. WireError or ValueError where they are none."""
        news: EngineNews = read_fields(cls, payload, ArrayReader([]))
        if news.state not in ENGINE_STATES or (news.facts is None) is (news.state == SERVING):
            raise ValueError(f"no such news of an engine: {news.state:.32}")
        return news


class ServerStatus(NamedTuple):
    """How an API server is: `num_taken` connections were handed to it so far, and `num_connections` are open.

    `num_open` are its requests, `num_sequences` how many of its sequences each engine has, by the engine's index.
    """

    phase: str
    num_taken: int
    num_connections: int
    num_open: int
    num_sequences: list[tuple[int, int]]

    @classmethod
    def read(cls, payload: Any) -> "ServerStatus":
        """The status in plain values. WireError or ValueError where it is none."""
        status: ServerStatus = read_fields(cls, payload, ArrayReader([]))
        Phase(status.phase)
        return status


def read_suspects(payload: Any) -> list[Suspect]:
    """Suspects in plain values. ValueError for what are none."""
    if type(payload) is not list or any(type(row) is not list or len(row) != NUM_FIELDS for row in payload):
        raise ValueError(f"suspects are a list of rows of {NUM_FIELDS}")
    if any(type(flag) is not bool for row in payload for flag in row[1:]):
        raise ValueError("what is told of a suspect is true or false")
    read_digests([row[0] for row in payload])
    return [Suspect(*row) for row in payload]


def read_digests(payload: Any) -> list[bytes]:
    """Digests of requests. ValueError for what is none."""
    if type(payload) is not list or len(payload) > MAX_SUSPECTS:
        raise ValueError(f"suspects are a list of at most {MAX_SUSPECTS}")
    if any(type(digest) is not bytes or len(digest) != DIGEST_BYTES for digest in payload):
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes")
    return payload
