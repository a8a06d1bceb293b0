"""The three clients of an EngineCore: in this process, in another process, and in another from an event loop."""

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_inproc import InprocClient
from vllm_obs.engine.client_sync import SyncMPClient

__all__ = ["AsyncMPClient", "InprocClient", "SyncMPClient"]
