"""How torch's threads wait for each other; decided before torch is loaded."""

import os

SPIN_COUNT = "1000"
"""A few microseconds, what libgomp itself takes when it knows of more threads than cores."""


def limit_spinning() -> None:
    """Make OpenMP threads sleep soon after a parallel region ends, unless the environment says how they wait.

    libgomp's threads spin for milliseconds by default. Where something else uses a core (the API server beside
    the engine, a neighbour on the host), a spinning thread takes the time slice from the one it waits for, and a
    region of 0.1 ms takes 12. libgomp reads this when torch is imported; later it has no effect.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
