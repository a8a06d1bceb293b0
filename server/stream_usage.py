"""Where a stream says its token counts (in every chunk, in a last one, or nowhere), and in the last its timing."""

import orjson

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.reply_metrics import ReplyMetrics
from vllm_obs.server.schema_sampling import StreamOptions
from vllm_obs.server.usage import Usage


class StreamUsage:
    """The usage of one stream, as `stream_options` asks for it."""

    def __init__(
        self, usage: Usage, metrics: ReplyMetrics, options: StreamOptions | None, is_forced: bool
    ) -> None:
        self._usage = usage
        self._metrics = metrics
        self._is_last = is_forced or (options is not None and options.include_usage)
        self.is_continuous = self._is_last and options is not None and options.continuous_usage_stats
        """Whether each chunk tells the counts; else only those of each choice's last delta matter."""

    def add(self, number: int, delta: SequenceDelta) -> None:
        """Take in the counts of a delta."""
        self._usage.add(number, delta)
        self._metrics.add(delta)

    def add_reasoning(self, number: int, num_tokens: int) -> None:
        """Take in how many of a choice's tokens are its reasoning."""
        self._usage.add_reasoning(number, num_tokens)

    def suffix(self) -> bytes:
        """What a chunk says after its choices."""
        return b',"usage":' + orjson.dumps(self._usage.for_chunk()) if self.is_continuous else b""

    def last_event(self, head: ReplyHead) -> bytes:
        """The event after the last choice, without choices; empty when no usage was asked for."""
        if not self._is_last:
            return b""
        fields = {
            **head.fields(),
            "choices": [],
            "usage": self._usage.for_chunk(),
            "system_fingerprint": head.fingerprint,
        }
        if self._metrics.is_enabled:
            fields["metrics"] = self._metrics.fields()
        return b"data: " + orjson.dumps(fields) + b"\n\n"
