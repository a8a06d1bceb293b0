"""Whose engine a test of processes has: one without a model, or, among the long tests, the default model."""

import pytest

Flags = tuple[str, ...]

EITHER_MODEL = [
    pytest.param(("--load-format", "synthetic"), id="no-model"),
    pytest.param((), id="default-model", marks=pytest.mark.long),
]
"""Flags of a server. Without a model it imports no torch, and is there in a second."""

either_model = pytest.mark.parametrize("flags", EITHER_MODEL)
