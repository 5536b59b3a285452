"""The HTTP interface: that of LibreTranslate, and one of our own under /v1."""

from __future__ import annotations

from time import monotonic
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.decode.translation import Translation
from nmt.serve.messages import (
    JsonLine,
    LibreTranslateRequest,
    ScoreRequest,
    TranslateRequest,
    request_schema,
)
from nmt.serve.metrics import CONTENT_TYPE
from nmt.serve.models import Line, Pair, Search, ServedModel
from nmt.serve.service import Service

# Answered while the server drains too: what asks for them wants to know that.
_PATHS_OF_OPERATORS = ("/health", "/metrics")


def build_app(service: Service) -> FastAPI:
    """The application. There is no page of documentation, because that of FastAPI loads scripts of another host."""
    app = FastAPI(title="nmt", docs_url=None, redoc_url=None, default_response_class=JsonLine)
    app.add_middleware(_Gate, service=service)
    app.add_exception_handler(AnyHTTPException, _answer_error)
    app.add_exception_handler(Exception, _answer_failure)
    _add_libretranslate(app, service)
    _add_own(app, service)

    @app.get("/health")
    async def health() -> Response:
        """Whether the server accepts requests."""
        if service.is_draining:
            return JsonLine({"error": "the server is shutting down"}, 503)
        return JsonLine({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters, in the text format of Prometheus."""
        return Response(service.metrics.render(service.models.values()), media_type=CONTENT_TYPE)

    return app


def _add_libretranslate(app: FastAPI, service: Service) -> None:
    @app.post("/translate", openapi_extra=request_schema(LibreTranslateRequest, form=True))
    async def translate(request: Request) -> Response:
        """Translate a text, or a list of texts, line by line."""
        asked = await service.read(request, LibreTranslateRequest)
        if asked.format != "text":
            raise HTTPException(400, f"format {asked.format!r} is not offered; it must be 'text'; correct it")
        model = _model_of_pair(service, asked.source, asked.target)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        lines_of_texts = [text.split("\n") for text in texts]
        # Alternatives differ in their texts, not only in their tokens: so the whole beam is looked at.
        search = Search(n_best=model.decode.beam_size if asked.alternatives else 1)
        lines = [Line(line) for lines in lines_of_texts for line in lines]
        found = iter(await service.translate(request, model, search, lines))
        of_texts = [_texts([next(found) for _ in lines], asked.alternatives + 1) for lines in lines_of_texts]
        is_one = isinstance(asked.q, str)
        answer: dict[str, Any] = {"translatedText": of_texts[0][0] if is_one else [own[0] for own in of_texts]}
        if asked.alternatives:
            answer["alternatives"] = of_texts[0][1:] if is_one else [own[1:] for own in of_texts]
        return JsonLine(answer)

    @app.get("/languages")
    async def languages() -> Response:
        """The source languages, and the targets of each."""
        targets: dict[str, list[str]] = {}
        for source, target in dict.fromkeys(model.languages for model in service.models.values()):
            targets.setdefault(source, []).append(target)
        return JsonLine([{"code": code, "name": code, "targets": own} for code, own in targets.items()])


def _model_of_pair(service: Service, source: str, target: str) -> ServedModel:
    """The first model of a language pair. The source `auto` is that of the only model that has the target."""
    models = [
        model
        for model in service.models.values()
        if model.languages[1] == target and source in (model.languages[0], "auto")
    ]
    if source == "auto" and len({model.languages[0] for model in models}) > 1:
        raise HTTPException(400, "source is 'auto', but languages are not detected; name the language")
    if not models:
        pairs = ", ".join(" to ".join(map(repr, model.languages)) for model in service.models.values())
        raise HTTPException(400, f"{source!r} to {target!r} is not served; it must be one of {pairs}; correct it")
    return models[0]


def _texts(lines: list[list[Translation]], most: int) -> list[str]:
    """Up to so many translations of a text, all different, from those of its lines, of which each may have fewer."""
    ranks = range(max(map(len, lines)))
    joined = ["\n".join(own[min(rank, len(own) - 1)].text for own in lines) for rank in ranks]
    return list(dict.fromkeys(joined))[:most]


def _add_own(app: FastAPI, service: Service) -> None:
    @app.post("/v1/translate", openapi_extra=request_schema(TranslateRequest))
    async def translate(request: Request) -> Response:
        """Translate lines, with scores, alignments and constraints."""
        asked = await service.read(request, TranslateRequest)
        model = service.model(asked.model)
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        if any("\n" in text for text in texts):
            raise HTTPException(400, "a text has a line feed; it must be one line; send a list of lines")
        search = Search(asked.n_best, asked.tag, tuple(asked.forbidden), asked.alignments, asked.scores)
        lines = [Line(text, asked.prefix if text.strip() else "", tuple(asked.required)) for text in texts]
        found = await service.translate(request, model, search, lines)
        translations = [[_fields(one, search) for one in own] for own in found]
        return JsonLine({"model": model.name, "translations": translations})

    @app.post("/v1/score", openapi_extra=request_schema(ScoreRequest))
    async def score(request: Request) -> Response:
        """The log-probability of given translations, and of each of their tokens."""
        asked = await service.read(request, ScoreRequest)
        model = service.model(asked.model)
        pairs = [Pair(*pair, number) for number, pair in enumerate(asked.pairs, start=1)]
        both = [f"{pair.source}{pair.target}" for pair in pairs]
        found = await service.answer(request, both, lambda: model.batcher.submit(None, pairs))
        scores = [
            {"log_prob": one.log_prob, "tokens": one.pieces, "token_log_probs": one.token_log_probs} for one in found
        ]
        return JsonLine({"model": model.name, "scores": scores})

    @app.get("/v1/models")
    async def models() -> Response:
        """The models and what they translate."""
        listed = [
            {
                "name": model.name,
                "source": model.languages[0],
                "target": model.languages[1],
                "engine": model.about,
                "beam_size": model.decode.beam_size,
            }
            for model in service.models.values()
        ]
        return JsonLine({"models": listed})


def _fields(translation: Translation, search: Search) -> dict[str, Any]:
    """What is told of a translation."""
    fields: dict[str, Any] = {"text": translation.text}
    if search.scores:
        fields |= {"score": translation.score, "log_prob": translation.log_prob}
        fields |= {"tokens": translation.pieces, "token_log_probs": translation.token_log_probs}
    if search.alignments:
        fields["alignment"] = translation.alignment or []
    return fields


def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    return JsonLine({"error": " ".join(str(error.detail).split())}, error.status_code, error.headers)


def _answer_failure(_request: Request, error: Exception) -> Response:
    return JsonLine({"error": f"the server failed: {type(error).__name__}; its log says more"}, 500)


class _Gate:
    """What each request passes first and last: it is refused while the server drains, and it is counted."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, began, status = self._service, monotonic(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        service.num_active += 1
        try:
            if service.is_draining and scope["path"] not in _PATHS_OF_OPERATORS:
                refusal = JsonLine({"error": "the server is shutting down"}, 503, {"connection": "close"})
                await refusal(scope, receive, send_and_note)
            else:
                await self._app(scope, receive, send_and_note)
        finally:
            service.num_active -= 1
            path = getattr(scope.get("route"), "path", "other")
            service.metrics.count(path, status, monotonic() - began)
