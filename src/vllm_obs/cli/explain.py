"""`vllm-obs explain REQUEST_ID`: where the time of one request of a live server (or a replay) went."""

import json
import sys
from typing import Any
from urllib.parse import quote

from vllm_obs.cli.live_run import InspectorError, find_inspector
from vllm_obs.cli.parser import Parser

EXIT_NOT_FOUND = 1
BAR_WIDTH = 40
NS_PER_MS = 1e6

_USAGE = "vllm-obs explain REQUEST_ID [--url URL] [--json]"
_DESCRIPTION = """\
Tell where the time of a request went.

REQUEST_ID is our id of the request or of one of its sequences, or the client's own label (X-Request-Id).
Where several requests carry one label, all are listed."""


def main(argv: list[str]) -> int:
    """Print what the inspector knows of the request; 1 when it knows none."""
    options = _parser().parse(argv)
    try:
        inspector = find_inspector(options["url"])
        found = inspector.get(f"/inspect/requests/{quote(options['request_id'], safe='')}")
    except InspectorError as error:
        print(f"vllm-obs: {error}", file=sys.stderr)
        return EXIT_NOT_FOUND
    print(json.dumps(found, indent=2) if options["json"] else explained(found))
    return 0


def explained(found: dict[str, Any]) -> str:
    """The inspector's answer about one id, for people."""
    sequences = found["sequences"]
    lines: list[str] = []
    if found["num_requests"] > 1:
        lines += [f"{found['num_requests']} requests carry this label.", ""]
    for sequence in sequences:
        lines += [*_sequence_lines(sequence), ""]
    return "\n".join(lines).rstrip()


def _sequence_lines(sequence: dict[str, Any]) -> list[str]:
    label = f" ({sequence['external_id']})" if sequence["external_id"] else ""
    lines = [f"{sequence['request_id']}{label}: {sequence['state']}", ""]
    lines += [f"  {sentence}" for sentence in sequence["explanation"]]
    total_ns = max(1, sequence["latency_ns"])
    lines.append("")
    for stage, length_ns in sequence["stage_ns"].items():
        if length_ns:
            bar = "█" * max(1, round(BAR_WIDTH * length_ns / total_ns))
            lines.append(
                f"  {stage:<11} {length_ns / NS_PER_MS:>12.3f} ms {100 * length_ns / total_ns:>5.1f} %  {bar}"
            )
    lines.append(f"  {'sum':<11} {sequence['latency_ns'] / NS_PER_MS:>12.3f} ms")
    for reason, length_ns in sequence["waits"].items():
        lines.append(f"  waited for {reason:<16} {length_ns / NS_PER_MS:>12.3f} ms")
    return lines


def _parser() -> Parser:
    parser = Parser("vllm-obs explain", _USAGE, _DESCRIPTION)
    parser.add_argument("request_id", metavar="REQUEST_ID", help="our id, or the client's label")
    parser.add_argument(
        "--url", default=None, metavar="URL", help="the inspector's address [the newest live run's]"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
