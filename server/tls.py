"""The certificate that the port speaks TLS with, checked before anything is started."""

import ssl

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig


def check_tls(server: ServerConfig) -> None:
    """Raise ConfigError for files that uvicorn could not serve with."""
    if server.ssl_cert_reqs not in (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED):
        raise ConfigError(f"--ssl-cert-reqs {server.ssl_cert_reqs} is not 0, 1 or 2")
    if server.ssl_cert_reqs and server.ssl_ca_certs is None:
        raise ConfigError("--ssl-cert-reqs needs --ssl-ca-certs")
    if server.ssl_certfile is None:
        if server.ssl_keyfile or server.ssl_ca_certs:
            raise ConfigError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile, _refuse_password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--ssl-certfile, --ssl-keyfile: {_cause(error)}") from None
    if server.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(server.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(f"--ssl-ca-certs: {_cause(error)}") from None


def _refuse_password() -> str:
    """OpenSSL would ask for it on a terminal, which a server has none of."""
    raise ValueError("the key has a password; a key without one is needed")


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate with its key in PEM form ({error.reason or 'unreadable'})"
    return (isinstance(error, OSError) and error.strerror) or str(error)
