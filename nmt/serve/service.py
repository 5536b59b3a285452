"""What every request passes through: keys, limits, the queue of a model, and the end of a client's patience."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from nmt.decode.translation import Translation
from nmt.logs import say
from nmt.recipe import UserError
from nmt.serve.batching import QueueFullError
from nmt.serve.messages import Message, parse_message
from nmt.serve.metrics import Metrics
from nmt.serve.models import Line, Search, ServedModel

Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Of one request; seconds: for its body to arrive, and then for its answer to be found."""

    body_bytes: int = 1_048_576
    characters: int = 100_000
    lines: int = 1_000
    seconds: float = 60.0


class ApiKeys:
    """The keys that let a client in."""

    def __init__(self, path: Path) -> None:
        """Read a file of one key a line; UserError where it cannot be read or has none."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}; it must hold one API key a line; check the file") from error
        self._keys = [line.strip().encode() for line in lines if line.strip()]
        if not self._keys:
            raise UserError(f"{path} holds no key; it must hold one API key a line; add one")

    def __contains__(self, key: str) -> bool:
        """Whether a key is one of them, in a time that does not depend on which."""
        given = key.encode("utf-8", "surrogatepass")
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        return any(matches)


class Service:
    """The models of a server, and the rules for their use.

    is_draining: whether the server ends as soon as it has answered the requests that it has
    num_active:  those requests
    """

    def __init__(
        self, models: Sequence[ServedModel], limits: Limits, api_keys: ApiKeys | None = None, *, logs_text: bool = False
    ) -> None:
        """logs_text: whether texts and their translations are written to stderr"""
        self.models: Mapping[str, ServedModel] = {model.name: model for model in models}
        self.metrics = Metrics()
        self.is_draining = False
        self.num_active = 0
        self._limits, self._api_keys, self._logs_text = limits, api_keys, logs_text

    async def read(self, request: Request, kind: type[Message]) -> Message:
        """The request that a body holds; HTTPException where it is none, or comes too slowly, or without a key."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                body = await self._read_body(request)
        except TimeoutError as error:
            wrong = f"the body did not arrive within {self._limits.seconds:g} seconds; send it faster"
            raise HTTPException(408, wrong, {"connection": "close"}) from error
        except ClientDisconnect as error:
            raise _client_has_gone() from error
        message = parse_message(request.headers.get("content-type", ""), body, kind)
        self._authorize(request.headers.get("authorization", ""), getattr(message, "api_key", ""))
        return message

    def model(self, name: str | None) -> ServedModel:
        """The model of a name, or the only one; HTTPException where there is none, or no only one."""
        if name is None and len(self.models) == 1:
            (name,) = self.models
        if name is not None and name in self.models:
            return self.models[name]
        wrong = "no model is named" if name is None else f"model {name!r} is not served"
        raise HTTPException(400, f"{wrong}; it must be one of {', '.join(self.models)}; correct it")

    async def translate(
        self, request: Request, model: ServedModel, search: Search, lines: Sequence[Line]
    ) -> list[list[Translation]]:
        """The translations of each line, best first; HTTPException as `answer` raises it."""
        texts = [line.text for line in lines]
        found = await self.answer(request, texts, lambda: model.batcher.submit(search, lines))
        if self._logs_text:
            say(json.dumps({"model": model.name, "texts": texts, "translations": [own[0].text for own in found]}))
        return found

    async def answer(
        self, request: Request, texts: Sequence[str], submit: Callable[[], list[Future[list[Result]]]]
    ) -> list[Result]:
        """The results of all futures that `submit` gives.

        texts: what is worked on
        Raises HTTPException where that is too much, the queue is full, the client has gone, or time is over.
        """
        for count, most, unit in (
            (sum(map(len, texts)), self._limits.characters, "characters"),
            (len(texts), self._limits.lines, "lines"),
        ):
            if count > most:
                raise HTTPException(413, f"the request has {count:,} {unit}; it must have at most {most:,}; split it")
        try:
            futures = submit()
        except QueueFullError as error:
            raise HTTPException(503, "the queue is full; try again later", {"retry-after": "1"}) from error
        try:
            return await self._wait(request, futures)
        except UserError as error:
            raise HTTPException(400, str(error)) from error

    async def _wait(self, request: Request, futures: Sequence[Future[list[Result]]]) -> list[Result]:
        found = asyncio.create_task(_results(futures))
        gone = asyncio.create_task(_disconnection(request))
        try:
            either: set[asyncio.Task[Any]] = {found, gone}
            await asyncio.wait(either, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if found.done():
                return found.result()
            if gone.done():
                raise _client_has_gone()
            raise HTTPException(504, f"no answer within {self._limits.seconds:g} seconds; send less text, or try later")
        finally:
            found.cancel()
            gone.cancel()
            for future in futures:
                future.cancel()

    async def _read_body(self, request: Request) -> bytes:
        """The body of a request, of which no more is read than it may have."""
        most = self._limits.body_bytes
        body = bytearray()
        too_large = HTTPException(413, f"the body is too large; it must have at most {most:,} bytes; split the request")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_large
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise too_large
        return bytes(body)

    def _authorize(self, header: str, key_in_body: str) -> None:
        """HTTPException without a valid key, where the server asks for keys."""
        if self._api_keys is None:
            return
        scheme, _, token = header.partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else key_in_body
        if not key:
            wrong = "an API key is needed; send it as 'Authorization: Bearer KEY'"
            raise HTTPException(401, wrong, {"www-authenticate": "Bearer"})
        if key not in self._api_keys:
            raise HTTPException(403, "the API key is not valid; correct it")


def _client_has_gone() -> HTTPException:
    """Nobody reads this answer; the metrics count it, under the status that nginx gives it."""
    return HTTPException(499, "the client has gone")


async def _results(futures: Sequence[Future[list[Result]]]) -> list[Result]:
    """All results, in order."""
    return [result for future in futures for result in await asyncio.wrap_future(future)]


async def _disconnection(request: Request) -> None:
    """Wait until the client of a request, whose body has been read, has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
