"""Writes of responses: head and body together, nothing lost or reordered."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from nmt.serve.server import _JoinedWrites


class FakeTransport:
    def __init__(self) -> None:
        self.calls: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.calls


LARGE = bytes(100_000)


def written(use: Callable[[_JoinedWrites], None]) -> list[bytes | str]:
    """Return the calls of the transport during one iteration of the loop."""

    async def run() -> list[bytes | str]:
        transport = FakeTransport()
        use(_JoinedWrites(cast(asyncio.Transport, transport), asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return transport.calls

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"head", b"body", b""], [b"headbody"]),
        ([b""], []),
        ([b"head", LARGE, b"rest"], [b"head" + LARGE, b"rest"]),
    ],
)
def test_parts_are_written_together(parts: list[bytes], expected: list[bytes]) -> None:
    def use(transport: _JoinedWrites) -> None:
        for part in parts:
            transport.write(part)

    assert written(use) == expected


def test_data_is_written_before_the_connection_closes() -> None:
    def use(transport: _JoinedWrites) -> None:
        transport.write(b"head")
        transport.write(b"body")
        assert not transport.is_closing()
        transport.close()
        assert transport.is_closing()

    assert written(use) == [b"headbody", "closed"]
