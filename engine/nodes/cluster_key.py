"""The cluster's key: a secret that the hosts of one run share, and the CURVE key pairs that follow from it."""

import hashlib
import hmac
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vllm_obs.engine.errors import ConfigError

_logger = logging.getLogger(__name__)

KEY_VARIABLE = "VLLM_OBS_CLUSTER_KEY"
MIN_KEY_CHARS = 16
MAX_KEY_CHARS = 4096

_SALT = b"vllm-obs cluster key 1"
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1, "dklen": 32}
"""So that a short secret is not guessed by trying many: a guess takes 50 ms and 16 MiB."""


class KeyPair(NamedTuple):
    """A Curve25519 key pair in Z85, 40 characters each."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


class ClusterKeys(NamedTuple):
    """Host 0 proves itself with the one, every other host with the other. Who has the secret can make both."""

    host: KeyPair
    nodes: KeyPair


def read_cluster_key(key_file: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The secret in the file, else in VLLM_OBS_CLUSTER_KEY. ConfigError, which shows nothing of it, for none."""
    if key_file is None and KEY_VARIABLE not in environ:
        raise ConfigError(
            f"several hosts need a cluster key, the same on each: set --cluster-key-file or {KEY_VARIABLE}"
        )
    where = KEY_VARIABLE if key_file is None else f"--cluster-key-file {key_file}"
    secret = (environ[KEY_VARIABLE] if key_file is None else _read(key_file)).strip()
    if not MIN_KEY_CHARS <= len(secret) <= MAX_KEY_CHARS:
        raise ConfigError(
            f"{where}: the key has {len(secret)} characters; between {MIN_KEY_CHARS} and {MAX_KEY_CHARS} may be"
        )
    return secret


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            if (mode := os.fstat(file.fileno()).st_mode & 0o777) & 0o077:
                _logger.warning("--cluster-key-file %s can be read by others (mode %o): chmod 600", path, mode)
            return file.read(MAX_KEY_CHARS + 2)
    except OSError as error:
        raise ConfigError(f"--cluster-key-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--cluster-key-file {path} is not UTF-8 text") from error


def key_pairs(secret: str) -> ClusterKeys:
    """The same pairs on every host that has the secret."""
    root = hashlib.scrypt(secret.encode(), salt=_SALT, **_SCRYPT)
    return ClusterKeys(_pair(root, b"host 0"), _pair(root, b"other hosts"))


def _pair(root: bytes, role: bytes) -> KeyPair:
    # Imported here: who only checks that there is a key needs no sockets.
    import zmq
    from zmq.utils import z85

    secret = z85.encode(hmac.digest(root, role, "sha256"))
    return KeyPair(zmq.curve_public(secret), secret)
