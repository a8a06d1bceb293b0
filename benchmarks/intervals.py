"""Means of paired ratios, and how sure they are."""

import math
import statistics

STUDENT_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""Student's t of 95 % by degrees of freedom, from 1 on; beyond them it is near enough to the last."""


def interval(ratios: list[float]) -> str:
    """The geometric mean of paired ratios with its 95 % interval, from their logarithms' spread."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return f"{math.exp(middle):.4f} (one pair: no interval)"
    student = STUDENT_95[min(len(logs) - 1, len(STUDENT_95)) - 1]
    half = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(middle):.4f} (95 %: {math.exp(middle - half):.4f} to {math.exp(middle + half):.4f})"
