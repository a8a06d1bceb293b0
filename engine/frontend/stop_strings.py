"""Stop strings in a growing text: found wherever they lie, and never shown in part."""


class StopStrings:
    """Finds the stop string that is complete first (of several ending together, the longest).

    What `feed` and `finish` return, joined, is the text up to that stop string (`include` keeps the string too),
    however the text was cut into pieces. Text is held back while it may be the beginning of a stop string.
    """

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._tail = ""
        """The end of the text so far that begins a stop string."""
        self.matched: str | None = None

    def feed(self, text: str, searched: bool = True) -> str:
        """Take more text and return what may be shown. Not `searched`: a stop string that ends here is none."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        whole, seen = self._tail + text, len(self._tail)
        if searched and (found := self._first(whole, seen)) is not None:
            end, start = found
            self.matched, self._tail = whole[start:end], ""
            return whole[seen:end] if self._include else whole[:start]
        held = self._begins(whole)
        self._tail = whole[held:]
        return text if self._include else whole[:held]

    def finish(self) -> str:
        """The text still held back, when nothing more will come."""
        held, self._tail = self._tail, ""
        return "" if self._include or self.matched is not None else held

    def _first(self, whole: str, seen: int) -> tuple[int, int] | None:
        """(end, start) of the stop string that ends first after the `seen` characters."""
        found = []
        for stop in self._stops:
            start = whole.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start))
        return min(found, default=None)

    def _begins(self, whole: str) -> int:
        """Where the longest end of the text lies that some stop string begins with; its length for none."""
        first = len(whole)
        for stop in self._stops:
            start = whole.find(stop[0], max(0, len(whole) - len(stop) + 1))
            while 0 <= start < first:
                if stop.startswith(whole[start:]):
                    first = start
                start = whole.find(stop[0], start + 1)
        return first
