"""The HTTP API: LibreTranslate's, and a native one under /v1, which the web page uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from time import monotonic
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.decode.glossary import Glossary, Term, forms_of
from nmt.decode.translation import Attention, Translation
from nmt.errors import UserError
from nmt.recipe import NO_LANGUAGE
from nmt.serve.access import check_access
from nmt.serve.documents import join_documents, require_markup, split_texts
from nmt.serve.events import Event, merge, stream_events, with_text_events
from nmt.serve.libretranslate import add_libretranslate_api
from nmt.serve.messages import JsonLine, ScoreRequest, SentencesRequest, TranslateRequest, request_schema
from nmt.serve.metrics import CONTENT_TYPE
from nmt.serve.models import AttentionRequest, Line, Pair, RequestOptions, ServedModel
from nmt.serve.page import add_page
from nmt.serve.service import SHUTTING_DOWN, Service
from nmt.text.sentences import split_sentences
from nmt.text.splitting import contains_phrase

_MAX_N_BEST = 32  # unless the model itself has more; each alternative needs a search, and samples have no other limit
_MAX_WEIGHTS = 5_000_000  # of attention in a response; encoding them as JSON blocks other requests for seconds
_EXCLUDED_BY_KEEP = ("partial_word", "alternatives", "alignments", "attention", "stream_tokens")
_EXCLUDED_BY_DOCUMENTS = (*_EXCLUDED_BY_KEEP, "prefix", "context", "scores", "stream", "n_best")
_SERVED_WHILE_DRAINING = ("/health", "/metrics")
_UNKNOWN = {
    "Not Found": "the path is unknown; see /openapi.json",
    "Method Not Allowed": "the path does not accept this method; see /openapi.json",
}


def build_app(service: Service, origins: Sequence[str] = (), hosts: Sequence[str] = ("*",)) -> FastAPI:
    """Build the application, without FastAPI's documentation pages, which load scripts from other hosts.

    origins: allowed CORS origins, or `*` for all
    hosts:   allowed host names, see `check_access`
    """
    app = FastAPI(title="nmt", docs_url=None, redoc_url=None, redirect_slashes=False, default_response_class=JsonLine)
    app.add_middleware(_Middleware, service=service, origins=origins, hosts=hosts)
    if origins:
        allowed = ["Authorization", "Content-Type"]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=allowed)
    app.add_exception_handler(AnyHTTPException, _http_error)
    app.router.route_class = _Route
    add_libretranslate_api(app, service)
    _add_translation_and_scores(app, service)
    _add_sentences_and_models(app, service)
    add_page(app)

    @app.get("/health")
    async def health() -> Response:
        """Return whether the server accepts requests."""
        if service.is_draining:
            return JsonLine({"error": SHUTTING_DOWN}, 503)
        return JsonLine({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counters in the Prometheus text format."""
        return Response(service.metrics.render(service.models.values()), media_type=CONTENT_TYPE)

    return app


def _add_translation_and_scores(app: FastAPI, service: Service) -> None:
    @app.post("/v1/translate", openapi_extra=request_schema(TranslateRequest))
    async def translate(request: Request) -> Response:
        """Translate lines, with optional scores, alignments and constraints, or documents."""
        body = await service.read_body(request, TranslateRequest)
        model = service.model(body.model)
        _check_combinations(body, model)
        options = _request_options(body)
        if body.forbidden or body.required or body.preferred:
            await asyncio.to_thread(_check_phrases, body, model)  # many long phrases would block other requests
        if body.format != "text":
            return await _translate_documents(service, request, model, body, options)
        return await _translate_lines(service, request, model, body, options)

    @app.post("/v1/score", openapi_extra=request_schema(ScoreRequest))
    async def score(request: Request) -> Response:
        """Return the log-probabilities of given translations and of their tokens."""
        body = await service.read_body(request, ScoreRequest)
        model = service.model(body.model)
        _require_single_lines([text for pair in body.pairs for text in pair])
        pairs = [Pair(*pair, number) for number, pair in enumerate(body.pairs, start=1)]
        texts = [f"{pair.source}{pair.target}" for pair in pairs]
        results = await service.process(request, texts, partial(model.batcher.submit, Pair, pairs))
        scores = [
            {"log_prob": result.log_prob, "tokens": result.pieces, "token_log_probs": result.token_log_probs}
            for result in results
        ]
        return JsonLine({"model": model.name, "scores": scores})


def _add_sentences_and_models(app: FastAPI, service: Service) -> None:
    @app.post("/v1/sentences", openapi_extra=request_schema(SentencesRequest))
    async def split_into_sentences(request: Request) -> Response:
        """Split lines into sentences by the rules of `decode.split_sentences`."""
        body = await service.read_body(request, SentencesRequest)
        _require_single_lines(body.texts)
        service.check_size(body.texts)
        return JsonLine({"sentences": await asyncio.to_thread(list, map(split_sentences, body.texts))})

    @app.get("/v1/models")
    async def list_models() -> Response:
        """List the models and the limits of requests."""
        limits = asdict(service.limits)
        limits["bytes"] = limits.pop("body_bytes")
        models = [_describe(model) for model in service.models.values()]
        return JsonLine({"models": models, "limits": limits, "requires_key": service.requires_key})


async def _translate_lines(
    service: Service, request: Request, model: ServedModel, body: TranslateRequest, options: RequestOptions
) -> Response:
    """Translate lines; the response has the requested fields of each translation, at once or as a stream of events."""
    _require_single_lines(body.texts)
    service.check_size(body.texts)
    lines = _make_lines(body.texts, body, model)
    if body.glossary and (body.forbidden or model.decode.forbid):
        await asyncio.to_thread(_check_terms, lines, body, model)
    _check_context_and_attention(body, len(lines))
    if body.stream_tokens:
        _check_streamed_tokens(body, model)
        partial_texts, lines = with_text_events(lines)
        chunks = service.stream(request, model, replace(options, stream_tokens=True), lines)
        return await stream_events(merge(_line_events(chunks, options), partial_texts))
    if body.stream:
        return await stream_events(_line_events(service.stream(request, model, options, lines), options))
    n_best_lists = await service.translate(request, model, options, lines)
    translations = [[_fields(translation, options) for translation in n_best] for n_best in n_best_lists]
    if body.attention:
        pairs = [AttentionRequest(lines[0].text, translation, options) for translation in n_best_lists[0]]
        attentions = await _attentions(service, request, model, pairs)
        for fields, attention in zip(translations[0], attentions, strict=True):
            fields["attention"] = vars(attention)
    return JsonLine({"model": model.name, "translations": translations})


async def _attentions(
    service: Service, request: Request, model: ServedModel, pairs: Sequence[AttentionRequest]
) -> list[Attention]:
    """Compute the attention of each pair in turn, and wait while the queue is full.

    Raises HTTPException if the response would have too many weights.
    """
    attentions: list[Attention] = []
    num_weights = 0
    for pair in pairs:
        submit = partial(model.batcher.submit, AttentionRequest, [pair])
        (attention,) = await service.process(request, [pair.line], submit, waits=True)
        attentions.append(attention)
        num_rows = sum(len(head) for layer in attention.weights for head in layer)
        num_weights += num_rows * len(attention.source)
        if num_weights > _MAX_WEIGHTS:
            problem = f"the attention has more than {_MAX_WEIGHTS:,} weights; reduce n_best, or send a shorter text"
            raise HTTPException(413, problem)
    return attentions


async def _translate_documents(
    service: Service, request: Request, model: ServedModel, body: TranslateRequest, options: RequestOptions
) -> Response:
    """Translate HTML pages or subtitle files; the response has only the translated text, without scores."""
    documents = await asyncio.to_thread(split_texts, body.texts, body.format, service.limits.lines)
    lines = [_make_lines([segment.text for segment in document.segments], body, model) for document in documents]
    joined = join_documents(documents, await service.translate_documents(request, model, options, lines))
    return JsonLine({"model": model.name, "translations": [[{"text": text}] for (text,) in joined]})


def _describe(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.languages[0],
        "target": model.languages[1],
        "engine": model.description,
        "beam_size": model.decode.beam_size,
        "length_alpha": model.decode.length_alpha,
        "context": model.translator.context._asdict(),
        "unsupported": model.unsupported,
    }


def _check_combinations(body: TranslateRequest, model: ServedModel) -> None:
    """Raise HTTPException for options that exclude or need each other, or that model or engine do not support."""
    for name, reason in model.unsupported.items():
        if getattr(body, name, None):
            raise HTTPException(400, f"{name} is not supported: {reason}")
    require_markup(body.format, model.unsupported)
    max_n_best = _MAX_N_BEST
    if not body.alternatives:
        max_n_best = max(max_n_best, model.decode.n_best, model.decode.beam_size)
    if body.n_best > max_n_best:
        raise HTTPException(400, f"n_best is {body.n_best}; it must be at most {max_n_best}; request fewer")
    if body.alternatives:  # each alternative is a separate search
        _require_defaults(body, ["stream_tokens"], "alternatives")
    if body.partial_word and not body.prefix:
        raise HTTPException(400, "partial_word needs the beginning of a word in prefix; send both")
    if body.keep:
        _require_defaults(body, _EXCLUDED_BY_KEEP, "keep")
    if body.format != "text":
        _require_defaults(body, _EXCLUDED_BY_DOCUMENTS, f"format {body.format}")


def _require_defaults(body: TranslateRequest, names: Sequence[str], option: str) -> None:
    """Raise HTTPException if one of these fields, which `option` excludes, does not have its default."""
    for name in names:
        if getattr(body, name) != TranslateRequest.model_fields[name].default:
            raise HTTPException(400, f"{option} and {name} are mutually exclusive; send one of them")


def _request_options(body: TranslateRequest) -> RequestOptions:
    keep = body.keep if body.format == "text" else [*body.keep, "markup"]
    return RequestOptions(
        n_best=body.n_best,
        beam_size=body.beam_size,
        length_alpha=body.length_alpha,
        tag=body.tag,
        forbid=tuple(body.forbidden),
        bias=tuple(body.preferred.items()),
        partial_word=body.partial_word,
        alternatives=body.alternatives,
        keep=tuple(dict.fromkeys(keep)),  # without duplicates
        is_subtitle=body.format == "srt",
        alignments=body.alignments,
        scores=body.scores,
    )


def _check_phrases(body: TranslateRequest, model: ServedModel) -> None:
    """Raise HTTPException if a preferred or required phrase, or the prefix, contains a forbidden phrase.

    A required phrase with alternatives is an error only if each alternative contains one. The prefix may contain
    forbidden phrases of the server, because it takes precedence over them.
    """
    for phrase in body.forbidden:
        if contains_phrase(body.prefix, phrase, ignores_case=model.translator.lowercases):
            raise HTTPException(400, f"prefix contains {phrase!r}, which is forbidden; change one of them")
    phrases = [("preferred", forms_of(phrase)) for phrase, bias in body.preferred.items() if bias > 0]
    phrases += [("required", forms_of(required)) for required in body.required]
    for kind, forms in phrases:
        _require_allowed(f"{kind} phrase {forms[0]!r}", forms, body, model)


def _check_context_and_attention(body: TranslateRequest, num_lines: int) -> None:
    """Raise HTTPException for a request with context or attention and several lines."""
    if body.context and num_lines != 1:
        raise HTTPException(400, "context needs a request with one text; send each line with its own context")
    if body.attention and (num_lines != 1 or body.stream or body.stream_tokens):
        raise HTTPException(400, "attention needs a request with one text and without stream; send the text alone")
    if body.attention:
        _require_defaults(body, ["context"], "attention")


def _check_streamed_tokens(body: TranslateRequest, model: ServedModel) -> None:
    """Raise HTTPException if a search has several hypotheses or samples, whose tokens cannot be streamed."""
    if not model.decode.sampling and (body.beam_size or model.decode.beam_size) > 1:
        raise HTTPException(400, "stream_tokens needs greedy search; set beam_size to 1")
    if model.decode.sampling and max(body.n_best, model.decode.n_best) > 1:
        raise HTTPException(400, "stream_tokens needs a single sample; set n_best to 1, or leave out stream_tokens")


def _check_terms(lines: Sequence[Line], body: TranslateRequest, model: ServedModel) -> None:
    """Raise HTTPException if all translations of a glossary term in a line contain a forbidden phrase.

    Does nothing with `keep`, because terms do not match within items, or if terms are annotated, because the model may
    ignore them.
    """
    if body.keep or model.decode.glossary_mode == "annotate":
        return
    terms = dict.fromkeys(term for line in lines if line.glossary for term in line.glossary.find(line.text))
    for term in terms:  # each once, because comparisons of many lines would take minutes
        what = f"glossary translation {term.forms[0]!r} of {term.source!r}"
        _require_allowed(what, term.required, body, model)


def _require_allowed(what: str, forms: Sequence[str], body: TranslateRequest, model: ServedModel) -> None:
    """Raise HTTPException if all alternatives contain a forbidden phrase."""
    if all(_forbidden_in(form, body, model) for form in forms):
        forbidden = _forbidden_in(forms[0], body, model)
        raise HTTPException(400, f"{what} contains {forbidden!r}, which is forbidden; change one of them")


def _forbidden_in(phrase: str, body: TranslateRequest, model: ServedModel) -> str:
    """Return the first forbidden phrase of the server or the request that a phrase contains; "" if there is none."""
    forbidden = (*model.decode.forbid, *body.forbidden)
    ignores_case = model.translator.lowercases
    return next((one for one in forbidden if contains_phrase(phrase, one, ignores_case=ignores_case)), "")


def _make_lines(texts: Sequence[str], body: TranslateRequest, model: ServedModel) -> list[Line]:
    """Return lines with the options of the request."""
    glossary = _make_glossary(body)
    lines = []
    for text in texts:
        has_prefix = bool(text.strip()) or model.languages[0] == NO_LANGUAGE  # an LM continues an empty text
        prefix = body.prefix if has_prefix else ""
        lines.append(Line(text, prefix, tuple(body.required), tuple(body.context), glossary=glossary))
    return lines


def _make_glossary(body: TranslateRequest) -> Glossary | None:
    """Return the glossary of a request, if any; raises HTTPException for an empty term or translation."""
    if not body.glossary:
        return None
    try:
        return Glossary(Term.parse(*pair, f"glossary.{number}") for number, pair in enumerate(body.glossary))
    except UserError as error:
        raise HTTPException(400, str(error)) from error


def _require_single_lines(texts: Sequence[str]) -> None:
    """Raise HTTPException if a text has several lines."""
    if any("\n" in text for text in texts):
        raise HTTPException(400, "a text contains a line feed; send each line as a separate text")


async def _line_events(chunks: AsyncIterator[list[list[Translation]]], options: RequestOptions) -> AsyncIterator[Event]:
    """Yield the translations of each line as an event."""
    index = 0
    async for chunk in chunks:
        for n_best in chunk:
            yield "line", {"index": index, "translations": [_fields(translation, options) for translation in n_best]}
            index += 1


def _fields(translation: Translation, options: RequestOptions) -> dict[str, Any]:
    """Return the requested fields of a translation."""
    fields: dict[str, Any] = {"text": translation.text}
    if options.scores:
        fields |= {"score": translation.score, "log_prob": translation.log_prob}
        fields |= {"tokens": translation.pieces, "token_log_probs": translation.token_log_probs}
    if options.alignments:
        fields["alignment"] = translation.alignment or []
    return fields


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    problem = _UNKNOWN.get(error.detail, error.detail)
    return JsonLine({"error": " ".join(problem.split())}, error.status_code, error.headers)


class _Route(APIRoute):
    """Skips FastAPI's parameter parsing for endpoints that take only the request."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if list(signature(endpoint).parameters) == ["request"]:
            self.app = request_response(endpoint)


class _Middleware:
    """Rejects requests from pages of other sites and requests while draining, reports internal errors, counts requests.

    `CORSMiddleware` answers preflight requests, which are not counted.
    """

    def __init__(self, app: ASGIApp, service: Service, origins: Sequence[str], hosts: Sequence[str]) -> None:
        self._app, self._service, self._origins, self._hosts = app, service, origins, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # the server omits the body
            scope = {**scope, "method": "GET"}
        service = self._service
        start = monotonic()
        status = 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        service.num_active += 1
        try:
            check_access(scope, self._origins, self._hosts)
            if service.is_draining and scope["path"] not in _SERVED_WHILE_DRAINING:
                response = JsonLine({"error": SHUTTING_DOWN}, 503, {"connection": "close"})
                await response(scope, receive, send_and_record)
            else:
                await self._app(scope, receive, send_and_record)
        except HTTPException as error:  # of `check_access`; the application handles its own
            await _http_error(Request(scope), error)(scope, receive, send_and_record)
        except Exception as error:  # the server logs the traceback
            if not status:
                problem = f"internal error: {type(error).__name__}; see the server log"
                await JsonLine({"error": problem}, 500)(scope, receive, send_and_record)
            raise
        finally:
            service.num_active -= 1
            path = getattr(scope.get("route"), "path", "other")
            service.metrics.count(path, status, monotonic() - start)
