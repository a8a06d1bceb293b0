"""Printing to whoever may stop reading: `vllm-obs top --once | head -4` ends without a word."""

import os
import sys


def say(text: str) -> None:
    """Print it, now; where nobody reads any more, it and what follows goes nowhere."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes standard output once more at its end, and would complain there.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
