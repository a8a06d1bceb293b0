"""The inspector's address is said once, when it is known and what comes before it has been said."""

import asyncio

import pytest
from in_loop import in_loop

from vllm_obs.server.inspector_notice import InspectorNotice

LINE = "Inspector: http://127.0.0.1:9999"


class FakeObserver:
    """One that has its address once it is set; None says that it has ended."""

    def __init__(self) -> None:
        self.found: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def address(self) -> str | None:
        return await self.found


@pytest.mark.parametrize(
    ("address", "comes_last", "said"),
    [
        ("http://127.0.0.1:9999", True, [LINE]),
        ("http://127.0.0.1:9999", False, [LINE]),
        (None, True, []),
        (None, False, []),
    ],
)
@in_loop
async def test_it_is_said_once_both_are_there(address: str | None, comes_last: bool, said: list[str]) -> None:
    lines: list[str] = []
    notice, observer = InspectorNotice(lines.append), FakeObserver()
    notice.follow(observer)  # type: ignore[arg-type]
    steps = [lambda: observer.found.set_result(address), notice.allow]
    for step in reversed(steps) if comes_last else steps:
        assert lines == []
        step()
        for _ in range(5):
            await asyncio.sleep(0)
    assert lines == said
