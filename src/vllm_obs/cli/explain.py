"""`vllm-obs explain REQUEST_ID`: where the time of one request of a live server (or a replay) went."""

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from vllm_obs.cli.live_run import find_inspectors
from vllm_obs.cli.parser import Parser
from vllm_obs.cli.printing import say
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

EXIT_NOT_FOUND = 1
NOT_FOUND_STATUS = 404
BAR_WIDTH = 40
NS_PER_MS = 1e6
_EIGHTHS = " ▏▎▍▌▋▊▉"

_USAGE = "vllm-obs explain REQUEST_ID [--url URL] [--json]"
_DESCRIPTION = """\
Tell where the time of a request went.

REQUEST_ID is our id of the request or of one of its sequences, the id of its reply (chatcmpl-...), the client's
own label (X-Request-Id), or the id of its trace (32 hexadecimal digits, as in traceparent). Where several requests
carry one label or trace, all are listed. Where several servers run, all are asked."""


class Found(NamedTuple):
    """What an inspector knows of an id."""

    inspector: Inspector
    answer: dict[str, Any]


def main(argv: list[str]) -> int:
    """Print what the inspector knows of the request; 1 when it knows none."""
    options = _parser().parse(argv)
    try:
        inspectors = find_inspectors(options["url"])
        found, *others = find_request(inspectors, options["request_id"])
    except InspectorError as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_NOT_FOUND
    if len(inspectors) > 1:
        also = "".join(f"; {other.inspector.words} knows one of that name as well" for other in others)
        print(f"vllm-obs: {found.inspector.words}{also}", file=sys.stderr)
    say(json.dumps(found.answer, indent=2) if options["json"] else explained(found.answer))
    return 0


def find_request(inspectors: list[Inspector], name: str) -> list[Found]:
    """What those that know it say of it, at least one. Raises InspectorError."""
    found: list[Found] = []
    error: InspectorError | None = None
    for inspector in inspectors:
        try:
            found.append(Found(inspector, inspector.get(f"/inspect/requests/{quote(name, safe='')}")))
        except InspectorError as other:
            # What could not be asked weighs more than what is not known there.
            error = other if error is None or other.status != NOT_FOUND_STATUS else error
    if not found:
        assert error is not None
        asked = ", ".join(inspector.words for inspector in inspectors)
        raise InspectorError(f"{error} (asked: {asked})", error.status)
    return found


def explained(found: dict[str, Any]) -> str:
    """The inspector's answer about one id, for people."""
    lines: list[str] = []
    if found["num_requests"] > 1:
        lines += [f"{found['num_requests']} requests carry this label.", ""]
    for sequence in found["sequences"]:
        lines += [*_sequence_lines(sequence), ""]
    if found["num_left_out"]:
        lines += [f"{found['num_left_out']} more sequences are left out.", ""]
    told = {sequence["http_id"] for sequence in found["sequences"]}
    for ended in reversed(found["http"]):
        if ended["http_id"] not in told:
            lines += [*_http_lines(ended), ""]
    return "\n".join(lines).rstrip()


def bar(share: float, width: int) -> str:
    """A share (0 to 1) of that many characters, to an eighth of one; nothing for less than half of that."""
    eighths = round(8 * width * min(1.0, max(0.0, share)))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _sequence_lines(sequence: dict[str, Any]) -> Iterator[str]:
    label = f" ({sequence['external_id']})" if sequence["external_id"] else ""
    yield f"{sequence['request_id']}{label}: {sequence['state']}"
    yield ""
    yield from (f"  {sentence}" for sentence in sequence["explanation"])
    yield ""
    total_ns = max(1, sequence["latency_ns"])
    for stage, length_ns in sequence["stage_ns"].items():
        if length_ns:
            share = length_ns / total_ns
            row = f"  {stage:<11} {length_ns / NS_PER_MS:>12.3f} ms {100 * share:>5.1f} %  {bar(share, BAR_WIDTH)}"
            yield row.rstrip()
    yield f"  {'sum':<11} {sequence['latency_ns'] / NS_PER_MS:>12.3f} ms"
    for reason, length_ns in sequence["waits"].items():
        yield f"  waited for {reason:<16} {length_ns / NS_PER_MS:>12.3f} ms"


def _http_lines(ended: dict[str, Any]) -> Iterator[str]:
    """An HTTP request of which no sequence is known: it was refused, or asked for none."""
    label = f" ({ended['external_id']})" if ended["external_id"] else ""
    status = f"{ended['status']} {ended['reason']}".rstrip()
    length_ms = (ended["ended_at"] - ended["received_at"]) / NS_PER_MS
    yield f"{ended['http_id']}{label}: answered {status}"
    yield ""
    yield f"  {ended['method']} {ended['handler']} was answered with {status} after {length_ms:.3f} ms."
    yield "  No sequence of it is known: it asked for none, or was refused before."


def _parser() -> Parser:
    parser = Parser("vllm-obs explain", _USAGE, _DESCRIPTION)
    parser.add_argument(
        "request_id", metavar="REQUEST_ID", help="our id, the reply's, the client's label, or the trace's id"
    )
    parser.add_argument("--url", default=None, metavar="URL", help="the inspector's address [all live runs']")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
