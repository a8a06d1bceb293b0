"""EarlyOrders: what an owner ordered before anybody in the child took orders of that kind."""

from collections import Counter
from typing import Any

MAX_EARLY_ORDERS = 256


class EarlyOrders:
    """In order, (kind, payload). Where there are too many, the oldest of a kind that has several gives way."""

    def __init__(self) -> None:
        self._orders: list[tuple[str, Any]] = []

    def keep(self, kind: str, payload: Any) -> None:
        """Keep one more. No kind is lost altogether: an order to open may stand before hundreds of news."""
        self._orders.append((kind, payload))
        if len(self._orders) > MAX_EARLY_ORDERS:
            numbers = Counter(each for each, _ in self._orders)
            oldest = next((at for at, (each, _) in enumerate(self._orders) if numbers[each] > 1), 0)
            del self._orders[oldest]

    def take(self) -> list[tuple[str, Any]]:
        """All of them; none are left."""
        taken, self._orders = self._orders, []
        return taken
