"""Test hooks: `maybe_fault("site")` does what VLLM_OBS_TEST_FAULTS asks for there, and nothing otherwise.

The variable holds comma-separated `site=action` pairs; an action is `raise`, `exit:CODE`, `kill`, `hang`,
`delay:SECONDS` or `raise:REQUEST_ID` (only where the site passes that id); an argument may end in `@REQUEST_ID`
with the same meaning (`exit:3@poison`, `kill:@poison`). It is read once, at import, and only when
VLLM_OBS_TEST_HOOKS=1 too: without both, a site costs one truth test of an empty dictionary.
"""

import os
import signal
import time


class InjectedFaultError(RuntimeError):
    """Raised by a site that was asked to fail."""


def _parse(text: str) -> dict[str, tuple[str, str]]:
    faults: dict[str, tuple[str, str]] = {}
    for pair in filter(None, text.split(",")):
        site, _, action = pair.partition("=")
        verb, _, argument = action.partition(":")
        faults[site] = (verb, argument)
    return faults


_FAULTS = (
    _parse(os.environ.get("VLLM_OBS_TEST_FAULTS", "")) if os.environ.get("VLLM_OBS_TEST_HOOKS") == "1" else {}
)


def maybe_fault(site: str, request_id: str = "") -> None:
    """Do what the tests planted at `site` (for `request_id`, where the plant names one)."""
    if _FAULTS and site in _FAULTS:
        _act(site, *_FAULTS[site], request_id)


def _act(site: str, verb: str, argument: str, request_id: str) -> None:
    argument, _, wanted = argument.partition("@")
    if wanted not in request_id:
        return
    if verb == "raise" and (not argument or argument in request_id):
        raise InjectedFaultError(f"planted at {site}")
    if verb == "exit":
        os._exit(int(argument or 1))
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "hang":
        time.sleep(3600)
    if verb == "delay":
        time.sleep(float(argument))


def any_planted() -> bool:
    """Whether tests planted anything: only then does an internal request id carry the client's label."""
    return bool(_FAULTS)
