"""The overview page."""

from vllm_obs.dashboard.frame import teach


def render() -> None:
    """Draw the page."""
    teach("Nothing is here yet.")
