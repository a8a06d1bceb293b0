import gc
import subprocess
import sys
import weakref

from vllm_obs.telemetry.collector import ALL_NS, MANY_OBJECTS, YOUNG_NS, Collector

NOW = 10**12


class Knot:
    """An object in a cycle, which only the collector can free."""

    def __init__(self) -> None:
        self.me = self


def knot() -> "weakref.ref[Knot]":
    return weakref.ref(Knot())


def run() -> None:
    """All that is claimed, in a process of its own: the collector is the process's."""
    collector = Collector(NOW)
    assert gc.get_threshold()[0] == MANY_OBJECTS
    assert gc.isenabled()

    fresh = knot()
    collector.tick(NOW + YOUNG_NS - 1)
    assert fresh() is not None
    collector.tick(NOW + YOUNG_NS)
    assert fresh() is None  # what is new is looked at

    kept = Knot()
    seen = weakref.ref(kept)
    num_frozen = gc.get_freeze_count()
    collector.tick(NOW + 2 * YOUNG_NS)
    assert gc.get_freeze_count() > num_frozen  # and then no more
    del kept
    collector.tick(NOW + 3 * YOUNG_NS)
    assert seen() is not None
    collector.tick(NOW + ALL_NS)
    assert seen() is None  # until everything is

    plain = {"history": [1, 2, 3]}
    watched = weakref.ref(Plain(plain))
    assert watched() is None  # what is in no cycle goes at once, frozen or not


class Plain:
    """An object in no cycle."""

    def __init__(self, content: object) -> None:
        self.content = content


def test_what_is_new_is_looked_at_soon_and_everything_seldom() -> None:
    subprocess.run([sys.executable, __file__], check=True)


if __name__ == "__main__":
    run()
