"""SECURITY.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_promise_names_a_test_that_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`((?:tests|deploy|benchmarks)/[\w/.-]+)`", text))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
