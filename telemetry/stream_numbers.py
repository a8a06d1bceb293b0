"""StreamNumbers: short numbers in the place of request ids, for streams that name them over and over."""

from collections.abc import Callable, Sequence

MAX_NAMES = 8192


class StreamNumbers:
    """A number for each id, from 1 on. At most `max_names` are known; no number is ever given twice."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._by_name: dict[str, int] = {}
        self.next = 1
        """The next new id's number."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_name

    def of(self, request_ids: Sequence[str]) -> list[int]:
        """The numbers of these ids, of new ones as well."""
        by_name = self._by_name
        try:
            return list(map(by_name.__getitem__, request_ids))
        except KeyError:
            for request_id in [each for each in request_ids if each not in by_name]:
                self._add(request_id)
            return list(map(by_name.__getitem__, request_ids))

    def names(self, begin: int = 1) -> dict[int, str]:
        """The ids by number, of those that were given from `begin` on and are known."""
        found: dict[int, str] = {}
        for request_id, number in reversed(self._by_name.items()):
            if number < begin:
                break
            found[number] = request_id
        return found

    def forget(self, is_live: Callable[[str], bool]) -> None:
        """If there are too many, let half of them go: those that are not live, then the oldest."""
        if len(self._by_name) <= self._max_names:
            return
        num_kept = self._max_names // 2
        ended = [request_id for request_id in self._by_name if not is_live(request_id)]
        for request_id in ended[: len(self._by_name) - num_kept]:
            del self._by_name[request_id]
        for request_id in list(self._by_name)[: len(self._by_name) - num_kept]:
            del self._by_name[request_id]

    def forget_all(self) -> None:
        """Whoever listens was told to forget all names."""
        self._by_name.clear()

    def _add(self, request_id: str) -> None:
        if request_id not in self._by_name:
            self._by_name[request_id] = self.next
            self.next += 1
