"""ProcessRole: what the role of a process, which names its ring, tells: kind, engine, place among the ranks."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

CORE, WORKER, API_SERVER, LAUNCHER, OBSERVER = "EngineCore", "Worker", "APIServer", "Launcher", "Observer"
OF_ENGINES = (CORE, WORKER)
FIRST_ENGINE = "0"
MAX_KNOWN = 1024
_PARTS = re.compile(r"_(DP|TP|PP)(\d{1,6})(?=_|$)")


class ProcessRole(NamedTuple):
    """`Worker_DP1_TP2_PP3` is a Worker of engine 1, shard 2 of stage 3.

    `engine` is empty for what is no engine's, and "0" where a core's or worker's role names none. `shard` and
    `stage` are -1 for what is no worker, 0 where a worker's role does not tell.
    """

    kind: str
    engine: str = ""
    shard: int = -1
    stage: int = -1


@lru_cache(maxsize=MAX_KNOWN)
def parse_role(role: str) -> ProcessRole:
    """The parts of a role; the whole of it is the kind where it is none of ours."""
    kind = role.partition("_")[0]
    numbers = {part: int(number) for part, number in _PARTS.findall(role)}
    if kind not in OF_ENGINES:
        return ProcessRole(kind)
    engine = str(numbers.get("DP", FIRST_ENGINE))
    if kind == CORE:
        return ProcessRole(kind, engine)
    return ProcessRole(kind, engine, numbers.get("TP", 0), numbers.get("PP", 0))


def engine_of_role(role: str) -> str:
    """The engine that a core or a worker belongs to, empty for any other process."""
    return parse_role(role).engine


def rank_of(role: str, roles: Iterable[str] = ()) -> int:
    """A worker's rank, stage times shards plus shard; -1 for what is no worker.

    Among `roles` are those of the other workers of its engine: they tell how many shards a stage has, which only
    one in a later stage needs.
    """
    found = parse_role(role)
    if found.stage <= 0:
        return found.shard
    others = (parse_role(other) for other in (role, *roles))
    num_shards = 1 + max(other.shard for other in others if other.engine == found.engine)
    return found.stage * num_shards + found.shard
