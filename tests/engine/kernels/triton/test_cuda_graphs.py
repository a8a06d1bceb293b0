"""The maker of CUDA graphs, over a torch.cuda that writes down its calls: what is captured where, and errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from vllm_obs.engine.worker.cuda_graphs import CudaGraphMaker


class FakeStream:
    """A stream with a name."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: "FakeStream") -> None:
        self.calls.append(f"{self.name} after {other.name}")


class FakeCuda:
    """The calls of torch.cuda that a capture makes. The end of one that broke off fails too, as CUDA's does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.current = FakeStream("main", self.calls)
        self.side = FakeStream("side", self.calls)
        for name, value in {
            "graph_pool_handle": lambda: "pool",
            "current_stream": lambda: self.current,
            "set_stream": self._set_stream,
            "stream": self._stream,
            "CUDAGraph": lambda: "graph",
            "graph": self._graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def work(self, error: Exception | None = None) -> Callable[[], torch.Tensor]:
        """Writes down where it runs; fails when it is captured, if an error is given."""

        def act() -> torch.Tensor:
            self.calls.append(f"work on {self.current.name}")
            if error is not None and self.calls[-2:-1] == ["begin"]:
                raise error
            return torch.ones(1)

        return act

    def _set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    @contextmanager
    def _stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def _graph(self, graph: str, pool: str, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert (graph, pool, capture_error_mode) == ("graph", "pool", "thread_local")
        before, self.current = self.current, stream
        self.calls.append("begin")
        try:
            yield
        except Exception:
            raise RuntimeError("capture was invalidated")  # noqa: B904 - and the stream is not put back, as in torch
        self.calls.append("end")
        self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def maker_of(cuda: FakeCuda) -> CudaGraphMaker:
    side: Any = cuda.side
    return CudaGraphMaker(side)


def test_work_is_rehearsed_beside_and_is_then_captured_there(cuda: FakeCuda) -> None:
    maker = maker_of(cuda)
    maker.rehearse(cuda.work())
    graph, result = maker.capture(cuda.work())
    assert graph == "graph"
    assert result.tolist() == [1.0]
    assert cuda.calls == ["side after main", "work on side", "main after side", "begin", "work on side", "end"]
    assert cuda.current.name == "main"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), ValueError("odd")])
def test_a_capture_that_breaks_off_says_what_went_wrong_and_leaves_the_stream(
    cuda: FakeCuda, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        maker_of(cuda).capture(cuda.work(error))
    assert cuda.current.name == "main"
