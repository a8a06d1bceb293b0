"""OversizedKeys: what a head beyond its limit is answered where nothing but its key is too large."""

from collections.abc import Sequence

from vllm_obs.server.anthropic_paths import envelope_of
from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.auth import key_names, unauthorized
from vllm_obs.server.config import Limits
from vllm_obs.server.errors import ApiError
from vllm_obs.server.public_paths import PUBLIC, path_of_target, route_path

Headers = Sequence[tuple[bytes, bytes]]


class OpenLine:
    """The line of a head that has not come whole yet: how it begins, and how long it is so far."""

    KEPT_BYTES = 64

    def __init__(self) -> None:
        self.begin = b""
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        """More of the head has come."""
        last = data.rfind(b"\n") + 1
        if last:
            self.begin, self.num_bytes = b"", 0
        self.begin += data[last : last + self.KEPT_BYTES - len(self.begin)]
        self.num_bytes += len(data) - last

    @property
    def name(self) -> bytes:
        """Of the header that it is, in lower case; "" while that is not known."""
        name, colon, _ = self.begin.partition(b":")
        return name.lower() if colon else b""


class OversizedKeys:
    """Where keys are needed, one that is too large for a head is a wrong key like any other.

    Nothing of it is kept or compared: no key of ours has that size. A public path has its limit as before, and so
    has whoever sends other headers beyond the limit.
    """

    def __init__(self, keys: ApiKeys, root_path: str, limits: Limits) -> None:
        self._keys = keys
        self._root_path = root_path.rstrip("/")
        self._limits = limits

    def refusal(self, target: bytes, headers: Headers, line: OpenLine) -> ApiError | None:
        """The 401 of every wrong key; None where something else is at fault, or no key is needed.

        `headers` are what has come whole (names in lower case) of a head over the limit, `line` is the rest.
        """
        path = path_of_target(target) if self._keys and len(target) <= self._limits.max_url_bytes else None
        if path is None:
            return None
        scope = {"path": path, "root_path": self._root_path}
        names = key_names(scope, [name for name, _ in headers])
        other_bytes = sum(len(name) + len(value) + 4 for name, value in headers if name not in names)
        other_bytes += line.num_bytes if line.name not in names else 0
        has_key = line.name in names or any(name in names for name, _ in headers)
        is_within = other_bytes <= self._limits.max_head_bytes and len(headers) <= self._limits.max_num_headers
        if not has_key or not is_within or route_path(scope) in PUBLIC:
            return None
        refusal = unauthorized(closes=True)
        refusal.envelope = envelope_of(scope)
        return refusal
