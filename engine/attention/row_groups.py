"""Which decode rows attend together, so that padding to the longest of a group wastes little."""

_WASTE = 1.25
"""Groups in the given order are good enough when they gather no more than this many times what is needed."""


def group_rows(sizes: list[int], budget: int) -> list[range] | list[list[int]]:
    """Split rows of `sizes` (blocks, at least 1) into groups.

    A group's rows times its longest size stay within `budget`, unless it is one row. Consecutive rows are kept
    together (ranges) where that wastes little or all rows make one group; else rows are grouped by size (lists),
    longest first.
    """
    consecutive = _split(list(range(len(sizes))), sizes, budget)
    gathered = sum(len(rows) * max(sizes[row] for row in rows) for rows in consecutive)
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    by_size = _split(order, sizes, budget, smallest_share=0.5)
    if gathered <= _WASTE * sum(sizes) or len(by_size) == 1:
        return [range(rows[0], rows[-1] + 1) for rows in consecutive]
    return by_size


def _split(order: list[int], sizes: list[int], budget: int, smallest_share: float = 0.0) -> list[list[int]]:
    """Cut `order` where a group would exceed the budget or a row is under that share of the group's longest."""
    groups: list[list[int]] = []
    longest = 0
    for row in order:
        grown = max(longest, sizes[row])
        group = groups[-1] if groups else []
        if group and (len(group) + 1) * grown <= budget and sizes[row] >= smallest_share * longest:
            group.append(row)
            longest = grown
        else:
            groups.append([row])
            longest = sizes[row]
    return groups
