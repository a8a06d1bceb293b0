"""CudaGraphMaker: captures work as CUDA graphs that share one pool of memory. Not run on a card yet."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vllm_obs.engine.worker.graph_captures import Graph, Work


class CudaGraphMaker:
    """Captures on a stream that nothing else uses; several makers may have the same one, each has its own pool.

    The pool is as large as the largest capture needs when that comes first. Replays must not overlap, as they do
    not on one stream.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream

    def rehearse(self, work: Work) -> None:
        """Do it on the capture's stream: a library's workspace there is another than elsewhere."""
        with self._beside():
            work()

    def capture(self, work: Work) -> tuple[Graph, torch.Tensor]:
        """Write down what it queues; exchanges between GPUs are queued like kernels, and written down too."""
        graph = torch.cuda.CUDAGraph()
        failures: list[Exception] = []
        results: list[torch.Tensor] = []
        with self._back_after():
            try:
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    _keep(work, results, failures)
            except Exception as error:
                # The end of a capture that broke off is an error too, which would hide why it did.
                raise (failures[0] if failures else error) from None
        return graph, results[0]

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On the capture's stream, after what is queued now and before what is queued next."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    @contextmanager
    def _back_after(self) -> Iterator[None]:
        """The current stream is the same afterwards, also where the end of a capture failed."""
        before = torch.cuda.current_stream()
        try:
            yield
        finally:
            torch.cuda.set_stream(before)


def _keep(work: Work, results: list[torch.Tensor], failures: list[Exception]) -> None:
    """Do the work; its result, or its error, is kept."""
    try:
        results.append(work())
    except Exception as error:
        failures.append(error)
        raise
