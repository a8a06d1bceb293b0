"""Readers of replies that can be nothing but calls, because a grammar made them so."""

from vllm_obs.server.tool_calls.events import CallDelta, Event
from vllm_obs.server.tool_calls.json_call import JsonCall


class RequiredReader:
    """A JSON list of calls, each with name and parameters."""

    def __init__(self) -> None:
        self._call: JsonCall | None = None
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        for char in text:
            if self._call is None:
                if char != "{":
                    continue
                self._call = JsonCall(self._num_calls)
            events += self._call.feed(char)
            if self._call.is_over:
                self._num_calls += bool(self._call.name)
                self._call = None
        return events

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []


class NamedReader:
    """The arguments of one call of a function that is known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def feed(self, text: str) -> list[Event]:
        """The next characters of the arguments, after the name."""
        name, self._name = self._name, ""
        begun: list[Event] = [CallDelta(0, name)] if name else []
        return [*begun, CallDelta(0, arguments=text)] if text else begun

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []
