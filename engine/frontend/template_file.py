"""The text of a chat template, given itself or in a file."""

from pathlib import Path

from vllm_obs.engine.errors import ConfigError

MAX_TEMPLATE_BYTES = 1 << 20


def read_template(template: str) -> str:
    """The text of --chat-template: a file's, or the template itself when it has braces."""
    if "{" in template:
        return template
    path = Path(template).expanduser()
    try:
        size = path.stat().st_size
        if size > MAX_TEMPLATE_BYTES:
            raise ConfigError(
                f"--chat-template {template} has {size} bytes; at most {MAX_TEMPLATE_BYTES} are allowed"
            )
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--chat-template {template:.256}: {reason}") from error
