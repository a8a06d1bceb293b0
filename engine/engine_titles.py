"""What an engine is called: its process, its records, and its end of the sockets."""

ENGINE_MODULE = "vllm_obs.engine.process"
"""What its process runs."""


def engine_title(engine_index: int) -> str:
    """What the process of an EngineCore is called, and its ring."""
    return f"EngineCore_DP{engine_index}"


def engine_identity(engine_index: int, generation: int) -> bytes:
    """The name under which an engine's DEALER is routed to; a restarted engine has another."""
    return f"engine-{engine_index}-{generation}".encode()
