"""One step's outputs as messages that fit the wire: in halves where they are too large, less what never fits."""

from collections.abc import Iterator
from typing import TypeVar

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.core_cut_off import failed_rows
from vllm_obs.engine.messages import EngineCoreOutputs, UtilityResult
from vllm_obs.engine.wire import FrameEncoder

TOO_LARGE = ("internal_error", "the output of this request is too large to be sent")

T = TypeVar("T")


class SentRows:
    """The messages of one step's outputs, and the sequences that ended because a row of theirs cannot be sent."""

    def __init__(self, encoder: FrameEncoder, outputs: EngineCoreOutputs) -> None:
        self.failed_ids: list[str] = []
        self._encoder = encoder
        self.messages: list[list[Buffer]] = list(self._encoded(outputs))

    def _encoded(self, outputs: EngineCoreOutputs) -> Iterator[list[Buffer]]:
        try:
            yield self._encoder.outputs(outputs)
        except WireError as error:
            yield from self._in_parts(outputs, error)

    def _in_parts(self, outputs: EngineCoreOutputs, error: WireError) -> Iterator[list[Buffer]]:
        num_rows = len(outputs.request_ids)
        if outputs.utility is not None:
            refusal = UtilityResult(outputs.utility.call_id, None, f"the answer cannot be sent: {error}")
            yield from self._encoded(outputs._replace(utility=None))
            yield self._encoder.outputs(_rows(outputs, 0, 0)._replace(utility=refusal))
        elif num_rows > 1:
            yield from self._encoded(_rows(outputs, 0, num_rows // 2))
            yield from self._encoded(_rows(outputs, num_rows // 2, num_rows))
        elif num_rows == 1:
            self.failed_ids += outputs.request_ids
            yield self._encoder.outputs(failed_rows(_rows(outputs, 0, 0), outputs.request_ids, TOO_LARGE))
        else:
            raise error


def _rows(outputs: EngineCoreOutputs, begin: int, end: int) -> EngineCoreOutputs:
    """These rows alone, with all that belongs to them."""

    def of_rows(pairs: list[T]) -> list[T]:
        return [(pair[0] - begin, *pair[1:]) for pair in pairs if begin <= pair[0] < end]  # type: ignore[index, misc]

    first_token = sum(outputs.num_new_tokens[:begin])
    num_tokens = sum(outputs.num_new_tokens[begin:end])
    return outputs._replace(
        request_ids=outputs.request_ids[begin:end],
        num_new_tokens=outputs.num_new_tokens[begin:end],
        new_token_ids=outputs.new_token_ids[first_token : first_token + num_tokens],
        finish_reasons=outputs.finish_reasons[begin:end],
        stop_token_ids=outputs.stop_token_ids[begin:end],
        num_cached_tokens=outputs.num_cached_tokens[begin:end],
        logprobs=of_rows(outputs.logprobs),
        prompt_logprobs=of_rows(outputs.prompt_logprobs),
        errors=of_rows(outputs.errors),
        timings=of_rows(outputs.timings),
        detours=of_rows(outputs.detours),
        pooled=of_rows(outputs.pooled),
        utility=None,
    )
