"""Ceilings: what a card was seen to do at best, and the least time that work takes by them."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Ceilings:
    """Bytes copied (read and written) and operations of a bf16 product a second."""

    bytes_per_second: float
    flops_per_second: float

    def floor_seconds(self, num_bytes: int, num_flops: int = 0) -> float:
        """The least time for so much work."""
        return max(num_bytes / self.bytes_per_second, num_flops / self.flops_per_second)

    def plain(self) -> dict[str, float]:
        """For the file."""
        return asdict(self)


UNKNOWN = Ceilings(float("inf"), float("inf"))
"""No share of these is a figure."""
