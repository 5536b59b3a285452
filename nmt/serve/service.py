"""Request processing: API keys, limits, queueing and timeouts."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from nmt.decode.documents import document_rounds
from nmt.decode.task import Previous
from nmt.decode.translation import Translation
from nmt.errors import NoTranslationError, UserError
from nmt.serve.batching import QueueFullError
from nmt.serve.delivery import Delivery
from nmt.serve.log import log, log_warning
from nmt.serve.messages import LibreTranslateMessage, Message, check_fields, parse_fields
from nmt.serve.metrics import Metrics
from nmt.serve.models import Line, ModelUnavailableError, RequestOptions, ServedModel
from nmt.text.context import is_blank, with_previous

Result = TypeVar("Result")

_RETRY_SECONDS = 1.0
_SECONDS_TO_FINISH = 2.0  # a body that is arriving when the server shuts down
SHUTTING_DOWN = "the server is shutting down"


@dataclass(frozen=True)
class Limits:
    """Limits of one request.

    seconds: timeout for receiving the body; and, in each call of `Service.process`, for waiting while the queue is
             full, and for the results
    """

    body_bytes: int = 1_048_576
    characters: int = 100_000
    lines: int = 1_000
    seconds: float = 60.0


class ApiKeys:
    """The accepted API keys."""

    def __init__(self, path: Path) -> None:
        """Read a file with one key per line, and comments (#); raises UserError if it cannot be read or has no key."""
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"cannot read {path}: {reason}; it must contain one API key per line; check it") from error
        self._keys = [line.encode() for line in map(str.strip, lines) if line and not line.startswith("#")]
        if not self._keys:
            raise UserError(f"{path} contains no API key; it must contain one API key per line; add one")

    def __contains__(self, key: str) -> bool:
        """Return whether a key is accepted, in constant time."""
        encoded = key.encode("utf-8", "surrogatepass")
        matches = [hmac.compare_digest(encoded, known) for known in self._keys]
        return any(matches)


class Service:
    """The served models, and the limits and API keys of requests.

    is_draining: whether new requests are rejected and the server exits after the active ones
    num_active:  number of requests in progress
    limits:      of each request
    """

    def __init__(
        self, models: Sequence[ServedModel], limits: Limits, api_keys: ApiKeys | None = None, *, logs_text: bool = False
    ) -> None:
        """Serve models. logs_text: write texts and translations to stderr"""
        self.models: Mapping[str, ServedModel] = {model.name: model for model in models}
        self.metrics = Metrics()
        self.is_draining = False
        self._receiving: set[asyncio.Timeout] = set()  # of the request bodies that are arriving
        self.num_active = 0
        self.limits, self._api_keys, self._logs_text = limits, api_keys, logs_text
        self._delivery: Delivery | None = None

    async def read_body(self, request: Request, kind: type[Message]) -> Message:
        """Read and parse the body of a request.

        Only LibreTranslate requests may have the API key in the body. Sets `request.state.client` for `Batcher.submit`:
        the key, or the address if the server requires no keys.

        Raises HTTPException if the body is invalid or slow, or the request has no valid API key.
        """
        key = _bearer_token(request)
        may_have_key = issubclass(kind, LibreTranslateMessage)
        if key or not may_have_key:  # reject invalid keys before receiving the body
            self._authorize(key)
        body = await self._receive_in_time(request)
        content_type = request.headers.get("content-type", "")
        fields = parse_fields(content_type, request.scope["query_string"], body, kind)
        if not key and may_have_key:
            key = fields.get("api_key") or ""
            self._authorize(key)
        if self.requires_key:
            request.state.client = key
        else:
            request.state.client = request.client.host if request.client else ""
        return check_fields(fields, kind)

    def end_receiving(self) -> None:
        """Wait at most two seconds longer for the request bodies that are arriving."""
        deadline = asyncio.get_running_loop().time() + _SECONDS_TO_FINISH
        for timeout in self._receiving:
            if not timeout.expired() and (timeout.when() or deadline) > deadline:
                timeout.reschedule(deadline)

    @property
    def requires_key(self) -> bool:
        """Whether requests need an API key."""
        return self._api_keys is not None

    def model(self, name: str | None) -> ServedModel:
        """Return a model by name, or the only one for None; raises HTTPException if there is no such model."""
        if name is None and len(self.models) == 1:
            (name,) = self.models
        if name is not None and name in self.models:
            return self.models[name]
        problem = "field model is missing" if name is None else f"model {name!r} is not served"
        raise HTTPException(400, f"{problem}; choose one of {', '.join(self.models)}")

    async def translate(
        self,
        request: Request,
        model: ServedModel,
        options: RequestOptions,
        lines: Sequence[Line],
        *,
        waits: bool = False,
    ) -> list[list[Translation]]:
        """Return the translations of each line, best first; waits, and raises HTTPException, like `process`."""
        texts = [line.text for line in lines]
        n_best_lists = await self.process(request, texts, partial(model.submit, options, lines), waits=waits)
        if self._logs_text:
            best = [translations[0].text for translations in n_best_lists]
            log(json.dumps({"model": model.name, "texts": texts, "translations": best}, ensure_ascii=False))
        return n_best_lists

    async def translate_documents(
        self, request: Request, model: ServedModel, options: RequestOptions, documents: Sequence[Sequence[Line]]
    ) -> list[list[Translation]]:
        """Translate the lines of documents, with the previous lines of each if the model has context.

        A blank line ends a document, as in `nmt translate`. Later rounds wait while the queue is full. Raises
        HTTPException like `process`.
        """
        lines = [line for document in documents for line in document]
        texts = [line.text for line in lines]
        self.check_size(texts)
        context = model.translator.context
        document_numbers = [number for number, document in enumerate(documents) for _ in document]
        context_sizes = [len(before) for _, before in with_previous(texts, context.size, is_blank, document_numbers)]
        previous: list[Previous] = list(texts)  # with target context, pairs with the translations of earlier rounds
        n_best_lists: list[list[Translation]] = [[]] * len(lines)
        rounds = document_rounds(context_sizes) if context.has_target else [list(range(len(lines)))]
        for number, indices in enumerate(rounds):
            with_context = [lines[i]._replace(context=tuple(previous[i - context_sizes[i] : i])) for i in indices]
            round_results = await self.translate(request, model, options, with_context, waits=number > 0)
            for i, n_best in zip(indices, round_results, strict=True):
                n_best_lists[i] = n_best
                if context.has_target:
                    previous[i] = (texts[i], n_best[0].text)
        return n_best_lists

    async def process(
        self,
        request: Request,
        texts: Sequence[str],
        submit: Callable[[Hashable], list[Future[list[Result]]]],
        *,
        waits: bool = False,
    ) -> list[Result]:
        """Call `submit` with the client and return the results of its futures.

        texts: counted against the limits
        waits: whether to wait while the queue is full, for at most `Limits.seconds`

        Raises HTTPException if the texts exceed a limit, the queue is full, the client disconnects, or on timeout.
        """
        self.check_size(texts)
        deadline = monotonic() + (self.limits.seconds if waits else 0.0)
        while True:
            try:
                futures = submit(request.state.client)
                break
            except QueueFullError as error:
                if monotonic() >= deadline:
                    raise HTTPException(503, "the queue is full; try again later", {"retry-after": "1"}) from error
            await asyncio.sleep(_RETRY_SECONDS)
        try:
            return await self._results(request, futures)
        except NoTranslationError as error:  # its advice is for the owner of the model
            problem = "no translation is possible; the constraints exclude every output, or the model fails"
            raise HTTPException(400, f"{problem}; relax the constraints, or choose another model") from error
        except UserError as error:
            raise HTTPException(400, str(error)) from error
        except ModelUnavailableError as error:
            log_warning(str(error))
            raise HTTPException(503, str(error)) from error

    async def stream(
        self, request: Request, model: ServedModel, options: RequestOptions, lines: Sequence[Line]
    ) -> AsyncIterator[list[list[Translation]]]:
        """Yield the translations of 1, 2, 4, ... lines, up to a batch; raises HTTPException like `process`.

        The first translation arrives early, and most lines are in large batches. `Limits.seconds` applies per batch.
        Later batches wait while the queue is full.
        """
        self.check_size([line.text for line in lines])
        start = 0
        size = 1
        while start < len(lines):
            yield await self.translate(request, model, options, lines[start : start + size], waits=start > 0)
            start += size
            size = min(2 * size, model.batcher.batch_size)

    def check_size(self, texts: Sequence[str]) -> None:
        """Raise HTTPException if texts exceed a limit."""
        _check_count(sum(map(len, texts)), "characters", self.limits.characters)
        _check_count(len(texts), "lines", self.limits.lines)

    async def _results(self, request: Request, futures: Sequence[Future[list[Result]]]) -> list[Result]:
        """Wait for futures and return their results; cancels them if the client disconnects, and on timeout."""
        delivery = self._delivery_to(asyncio.get_running_loop())
        disconnection = asyncio.create_task(_wait_for_disconnection(request))
        deadline = monotonic() + self.limits.seconds
        results: list[Result] = []
        try:
            for future in futures:
                waiting: set[asyncio.Future[None]] = {delivery.watch(future), disconnection}
                timeout = max(0.0, deadline - monotonic())
                await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if future.done():
                    results += future.result()
                elif disconnection.done():
                    raise _client_disconnected()
                else:
                    problem = f"timeout after {self.limits.seconds:g} seconds; send less text or try again later"
                    raise HTTPException(504, problem)
            return results
        finally:
            disconnection.cancel()
            for future in futures:
                future.cancel()

    def _delivery_to(self, loop: asyncio.AbstractEventLoop) -> Delivery:
        """Return the delivery to the event loop that processes requests."""
        if self._delivery is None or self._delivery.loop is not loop:
            self._delivery = Delivery(loop)
        return self._delivery

    async def _receive_in_time(self, request: Request) -> bytes:
        """Receive the body of a request within the time limit; raises HTTPException otherwise."""
        try:
            async with asyncio.timeout(self.limits.seconds) as timeout:
                self._receiving.add(timeout)
                return await self._receive_body(request)
        except TimeoutError as error:
            if self.is_draining:
                raise HTTPException(503, SHUTTING_DOWN, {"connection": "close"}) from error
            problem = f"the request body did not arrive within {self.limits.seconds:g} seconds; send it faster"
            raise HTTPException(408, problem, {"connection": "close"}) from error
        except ClientDisconnect as error:
            raise _client_disconnected() from error
        finally:
            self._receiving.discard(timeout)

    async def _receive_body(self, request: Request) -> bytes:
        """Receive the body of a request, and stop reading at the limit."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise HTTPException(415, f"content-encoding {encoding} is not supported; send the body uncompressed")
        limit = self.limits.body_bytes
        body = bytearray()
        too_large = HTTPException(413, f"the request body is too large; the limit is {limit:,} bytes; split it")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
        return bytes(body)

    def _authorize(self, key: object) -> None:
        """Raise HTTPException if the server requires API keys and this is not a valid one."""
        if self._api_keys is None:
            return
        if not key or not isinstance(key, str):
            problem = "an API key is required; send 'Authorization: Bearer KEY', or api_key to /translate or /detect"
            raise HTTPException(401, problem, {"www-authenticate": "Bearer"})
        if key not in self._api_keys:
            raise HTTPException(403, "the API key is not valid; check it")


def _check_count(count: int, unit: str, limit: int) -> None:
    if count > limit:
        raise HTTPException(413, f"the request has {count:,} {unit}; the limit is {limit:,}; split it")


def _bearer_token(request: Request) -> str:
    """Return the API key in the header of a request, or "" if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    with suppress(UnicodeDecodeError):  # for a non-ASCII key: headers are decoded as Latin-1
        token = token.encode("latin-1").decode()
    return token.strip() if scheme.lower() == "bearer" else ""


def _client_disconnected() -> HTTPException:
    """Return an error with nginx's status, which only the metrics record."""
    return HTTPException(499, "the client disconnected")


async def _wait_for_disconnection(request: Request) -> None:
    """Wait until the client disconnects; the request body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
