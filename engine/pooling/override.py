"""What --pooler-config changes of how a model pools."""

from dataclasses import replace
from typing import Any

from vllm_obs.engine.config import PoolingConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.pooling.kinds import POOLING_KINDS, PoolingKind

_KIND_KEYS = ("pooling_type", "seq_pooling_type")
_NORMALIZE_KEYS = ("normalize", "use_activation")


def overridden(pooling: PoolingConfig, values: dict[str, Any]) -> PoolingConfig:
    """The model's way of pooling with what these values say. ConfigError names what they may not."""
    for key, value in values.items():
        if key in _KIND_KEYS:
            pooling = replace(pooling, kind=_kind(key, value))
        elif key in _NORMALIZE_KEYS:
            if type(value) is not bool:
                raise ConfigError(f"--pooler-config: {key} is {value!r:.64}, not true or false")
            pooling = replace(pooling, normalize=value)
        else:
            known = ", ".join((*_KIND_KEYS, *_NORMALIZE_KEYS))
            raise ConfigError(f"--pooler-config: {key[:64]} is not supported; supported: {known}")
    return pooling


def _kind(key: str, value: Any) -> PoolingKind:
    for kind in POOLING_KINDS:
        if isinstance(value, str) and value.lower() == kind:
            return kind
    supported = ", ".join(kind.upper() for kind in POOLING_KINDS)
    raise ConfigError(f"--pooler-config: {key} {value!r:.64} is not supported; supported: {supported}")
