"""Responses as server-sent events, in the format of the HTML standard, section 9.2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from fastapi import HTTPException
from fastapi.responses import StreamingResponse

from nmt.serve.models import Line

Event = tuple[str, dict[str, Any]]
"""Name and data of an event."""


async def stream_events(events: AsyncIterator[Event]) -> StreamingResponse:
    """Return a response that sends events, then the event `done`.

    An HTTPException before the first event is raised. A later one becomes the event `error`, because the status has
    been sent.
    """
    first = await anext(events, None)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # proxies must not buffer the response
    return StreamingResponse(_encode(first, events), media_type="text/event-stream", headers=headers)


def with_text_events(lines: Sequence[Line]) -> tuple[asyncio.Queue[Event], list[Line]]:
    """Return a queue, and the lines with callbacks that add an event `text` to it for each partial translation."""
    queue: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def add(index: int, text: str) -> None:  # called in another thread
        loop.call_soon_threadsafe(queue.put_nowait, ("text", {"index": index, "text": text}))

    return queue, [line._replace(on_text=partial(add, index)) for index, line in enumerate(lines)]


async def merge(events: AsyncIterator[Event], queue: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    """Yield events and queued events as they arrive, until `events` ends.

    Each of `events` follows those queued before it arrived, so the translation of a line is its last event.
    """
    while True:
        next_event = asyncio.ensure_future(anext(events, None))
        try:
            while not next_event.done():
                queued = asyncio.ensure_future(queue.get())
                try:
                    await asyncio.wait((next_event, queued), return_when=asyncio.FIRST_COMPLETED)
                    if queued.done():
                        yield queued.result()
                finally:
                    queued.cancel()
            event = next_event.result()
        finally:
            next_event.cancel()
        while not queue.empty():
            yield queue.get_nowait()
        if event is None:
            return
        yield event


async def _encode(first: Event | None, rest: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield _format(*first)
        async for event in rest:
            yield _format(*event)
        yield _format("done", {})
    except HTTPException as error:
        yield _format("error", {"error": error.detail})
    except Exception as error:  # the server logs the traceback
        yield _format("error", {"error": f"internal error: {type(error).__name__}; see the server log"})
        raise


def _format(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
