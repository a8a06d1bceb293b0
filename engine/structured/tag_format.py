"""The nested form of a structural tag (tags, sequences, choices, inside free text) written as a grammar."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from vllm_obs.engine.errors import Reason, RequestError
from vllm_obs.engine.structured.grammar_text import BLANKS, MAX_TAGS, grammar_with_parts, lark_text, schema_text

MAX_FORMATS = 1024
MAX_DEPTH = 32
_EXCLUSIONS = ("excludes", "excluded_str", "excluded_strs")
_ANY_TEXT = r"/(.|\n)*/"
_BOUNDED_BLANKS = {"whitespace_flexible": True, "whitespace_pattern": BLANKS}

Format = Mapping[str, Any]


def format_grammar(value: Any) -> str:
    """The grammar of a format. RequestError for what is none, and for kinds that cannot be had here."""
    writer = _Writer()
    start = writer.write(value)
    return grammar_with_parts("\n".join(["%llguidance {}", f"start: {start}", *writer.rules]), writer.parts)


class _Writer:
    """Writes formats as expressions of one Lark grammar; what needs a name becomes a rule, a grammar a part."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.parts: dict[str, str] = {}
        self._num_formats = self._depth = 0
        self._kinds: dict[str, Callable[[Format], str]] = {
            "const_string": lambda given: _quoted(_text(given, "value")),
            "json_schema": lambda given: _json(given.get("json_schema")),
            "regex": lambda given: _regex(_text(given, "pattern")),
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": lambda given: " ".join(map(self.write, _list(given, "elements"))),
            "or": lambda given: " | ".join(map(self.write, _list(given, "elements"))),
            "tag": lambda given: self._tag(given, _text(given, "begin")),
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def write(self, given: Any) -> str:
        """One format, in brackets."""
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS or self._depth >= MAX_DEPTH:
            raise _refused(f"holds more than {MAX_FORMATS} formats, or they are deeper than {MAX_DEPTH} levels")
        if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
            raise _refused("needs formats that are objects with a type")
        kind = self._kinds.get(given["type"])
        if kind is None:
            raise _refused(f"can have formats of type {', '.join(self._kinds)}", reason="unsupported")
        self._depth += 1
        written = f"({kind(given)})"
        self._depth -= 1
        return written

    def _grammar(self, given: Format) -> str:
        name = f"part_{len(self.parts)}"
        self.parts[name] = lark_text(_text(given, "grammar"))
        return f"@{name}"

    def _any_text(self, given: Format, end: str = "") -> str:
        """Any text, up to the first `end` and with it, if there is one."""
        _check_exclusions(given)
        return self._named(f"[lazy]: {_ANY_TEXT} {end}") if end else _ANY_TEXT

    def _tag(self, given: Format, begin: str) -> str:
        """A rule for a tag, of whose beginning `begin` is yet to be written. A name, as some stand there twice."""
        content, end = given.get("content"), " | ".join(map(_quoted, _texts(given.get("end"), "end")))
        if isinstance(content, Mapping) and content.get("type") == "any_text" and end != _quoted(""):
            return self._named(f": {_quoted(begin)} {self._any_text(content, f'({end})')}")
        return self._named(f": {_quoted(begin)} {self.write(content)} ({end})")

    def _triggered(self, given: Format) -> str:
        _check_exclusions(given)
        after = self._by_trigger(given)
        first = " | ".join(f"{_quoted(trigger)} ({rest})" for trigger, rest in after.items())
        if given.get("stop_after_first") and given.get("at_least_one"):
            return first
        tail = self._named(f": {_ANY_TEXT}")
        found = " | ".join(
            f"{self._named(f'[lazy]: {_ANY_TEXT} {_quoted(trigger)}')} ({rest})" for trigger, rest in after.items()
        )
        if given.get("stop_after_first"):
            return f"{found} | {tail}"
        return f"({first}) ({found})* {tail}" if given.get("at_least_one") else f"({found})* {tail}"

    def _by_trigger(self, given: Format) -> dict[str, str]:
        """What may follow each trigger."""
        triggers = _texts(given.get("triggers"), "triggers")
        after: dict[str, list[str]] = {}
        for tag in _tags(given):
            begin = _text(tag, "begin")
            trigger = next((text for text in triggers if text and begin.startswith(text)), None)
            if trigger is None:
                raise _refused("has a tag that begins with none of the triggers")
            after.setdefault(trigger, []).append(self._tag(tag, begin[len(trigger) :]))
        return {trigger: " | ".join(rests) for trigger, rests in after.items()}

    def _separated(self, given: Format) -> str:
        _check_exclusions(given)
        one = f"({' | '.join(self._tag(tag, _text(tag, 'begin')) for tag in _tags(given))})"
        more = "" if given.get("stop_after_first") else f" ({_quoted(_text(given, 'separator'))} {one})*"
        return f"{one}{more}" if given.get("at_least_one") else f"({one}{more})?"

    def _named(self, rest: str) -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(name + rest)
        return name


def _check_exclusions(given: Format) -> None:
    """RequestError where text between or around tags may be any but some: that cannot be had."""
    if any(given.get(name) for name in _EXCLUSIONS):
        raise _refused("cannot exclude texts", reason="unsupported")


def _json(schema: Any) -> str:
    if not isinstance(schema, Mapping | bool):
        raise _refused("needs a json_schema that is an object")
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return "%json " + schema_text({**schema, "x-guidance": _BOUNDED_BLANKS})


def _regex(pattern: str) -> str:
    try:
        return f"/{regex_to_lark(pattern, '')}/"
    except ValueError:
        raise _refused("has a pattern that cannot be read", reason="unsupported") from None


def _tags(given: Format) -> Sequence[Format]:
    tags = _list(given, "tags")
    if len(tags) > MAX_TAGS or not all(isinstance(tag, Mapping) for tag in tags):
        raise _refused(f"takes lists of at most {MAX_TAGS} tags, which are objects")
    return tags


def _list(given: Format, name: str) -> Sequence[Any]:
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise _refused(f"needs {name}, a list that is not empty, in a format of type {given.get('type')}")
    return value


def _text(given: Format, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise _refused(f"needs {name}, a text")
    return value


def _texts(value: Any, name: str) -> Sequence[str]:
    """One text or a list of some."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_TAGS or not all(isinstance(t, str) for t in texts):
        raise _refused(f"needs {name}, a text or at most {MAX_TAGS}")
    return texts


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refused(why: str, reason: Reason = "invalid_value") -> RequestError:
    return RequestError(f"structural_tag {why}.", "structural_tag", reason=reason)
