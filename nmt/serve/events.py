"""Responses as server-sent events, in the format of the HTML standard, section 9.2."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import HTTPException
from fastapi.responses import StreamingResponse

Event = tuple[str, dict[str, Any]]
"""Name and data of an event."""


async def stream_events(events: AsyncIterator[Event]) -> StreamingResponse:
    """Send events, then the event `done`.

    An HTTPException before the first event is raised. A later one becomes the event `error`, because the status has
    been sent.
    """
    first = await anext(events, None)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # a proxy must not wait for the whole response
    return StreamingResponse(_encode(first, events), media_type="text/event-stream", headers=headers)


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
