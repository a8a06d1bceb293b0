"""HeldText: content that goes out unless it may begin a marker, and blanks that go out before text only."""

from vllm_obs.server.tool_calls.events import Content, Event


class HeldText:
    """Looks for markers in text that comes in pieces."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._text = ""
        self._blanks = ""
        self._dropped = ""
        self._has_found = self._had_found = False

    def feed(self, text: str) -> tuple[list[Event], str | None, str]:
        """Content before the first marker, that marker (None: there is none yet), and what follows it."""
        self._text += text
        found = [
            (self._text.find(marker), -len(marker), marker) for marker in self._markers if marker in self._text
        ]
        if found:
            at, _, marker = min(found)
            self._had_found, self._has_found = self._has_found, True
            before, after, self._text = self._text[:at], self._text[at + len(marker) :], ""
            return self._content(before, is_last=True), marker, after
        num_held = max((_overlap(self._text, marker) for marker in self._markers), default=0)
        ready, self._text = self._text[: len(self._text) - num_held], self._text[len(self._text) - num_held :]
        return self._content(ready), None, ""

    def not_found(self, marker: str) -> list[Event]:
        """The last marker turned out to be text: it, and the blanks before it."""
        self._has_found = self._had_found
        return [Content(self._dropped + marker)]

    def finish(self) -> list[Event]:
        """What is held back after all; after a marker without blanks at the end."""
        text, self._text = self._blanks + self._text, ""
        self._blanks = ""
        text = text.rstrip() if self._has_found else text
        return [Content(text)] if text else []

    def _content(self, text: str, is_last: bool = False) -> list[Event]:
        text = self._blanks + text
        kept = text.rstrip()
        self._dropped = text[len(kept) :]
        self._blanks = "" if is_last else self._dropped
        return [Content(kept)] if kept else []


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of the text begin the marker."""
    return next((num for num in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:num])), 0)
