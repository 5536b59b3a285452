"""The HTTP API of LibreTranslate, for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from nmt.errors import UserError
from nmt.export.capabilities import max_hypotheses
from nmt.recipe import NO_LANGUAGE
from nmt.serve.detection import Detected, rank_languages
from nmt.serve.documents import TextFormat, join_documents, require_markup, split_texts
from nmt.serve.messages import DetectRequest, JsonLine, LibreTranslateRequest, request_schema
from nmt.serve.models import Line, RequestOptions, ServedModel
from nmt.serve.service import Service

_NAMED_LANGUAGES = """
    af Afrikaans, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, bs Bosnian, ca Catalan,
    cs Czech, cy Welsh, da Danish, de German, el Greek, en English, eo Esperanto, es Spanish, et Estonian,
    eu Basque, fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati, he Hebrew, hi Hindi,
    hr Croatian, hu Hungarian, hy Armenian, id Indonesian, is Icelandic, it Italian, ja Japanese, ka Georgian,
    kk Kazakh, km Khmer, kn Kannada, ko Korean, ky Kyrgyz, la Latin, lt Lithuanian, lv Latvian, mk Macedonian,
    ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my Burmese, nb Norwegian Bokmål, ne Nepali,
    nl Dutch, nn Norwegian Nynorsk, no Norwegian, pa Punjabi, pl Polish, ps Pashto, pt Portuguese, ro Romanian,
    ru Russian, si Sinhala, sk Slovak, sl Slovenian, so Somali, sq Albanian, sr Serbian, sv Swedish, sw Swahili,
    ta Tamil, te Telugu, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, xh Xhosa,
    zh Chinese, zu Zulu
"""
_NAMES = dict(named.strip().split(" ", 1) for named in _NAMED_LANGUAGES.split(","))


def add_libretranslate_api(app: FastAPI, service: Service) -> None:
    """Add the endpoints of LibreTranslate."""
    _add_translation(app, service)
    _add_descriptions(app, service)


def _add_translation(app: FastAPI, service: Service) -> None:
    @app.post("/translate", openapi_extra=request_schema(LibreTranslateRequest, form=True))
    async def translate(request: Request) -> Response:
        """Translate a text or a list of texts, line by line, or HTML block by block."""
        body = await service.read_body(request, LibreTranslateRequest)
        if body.format not in ("text", "html"):
            raise HTTPException(400, f"format {body.format!r} is not supported; it must be 'text' or 'html'")
        kind: TextFormat = "html" if body.format == "html" else "text"
        documents = await asyncio.to_thread(split_texts, body.texts, kind, service.limits.lines)
        segments = [segment.text for document in documents for segment in document.segments]
        detected = _detect(service, segments, body.target)[0] if body.source == "auto" else None
        model = _find_model(service, detected.language if detected else body.source, body.target)
        require_markup(kind, model.unsupported)
        n_best = 1
        if body.alternatives:
            # Different token sequences may decode to the same text, so distinct alternatives need the whole beam. With
            # MBR, more candidates than without alternatives could change the selected translation.
            n_best = max_hypotheses(model.decode) if model.decode.mbr_metric == "none" else model.decode.n_best
        options = RequestOptions(n_best=n_best, keep=("markup",) if kind == "html" else ())
        lines = [[Line(segment.text) for segment in document.segments] for document in documents]
        n_best_lists = await service.translate_documents(request, model, options, lines)
        translated = join_documents(documents, n_best_lists, body.alternatives + 1)
        response: dict[str, list[Any]] = {"translatedText": [best for best, *_ in translated]}
        if body.alternatives:
            response["alternatives"] = [others for _, *others in translated]
        if detected:
            response["detectedLanguage"] = [detected._asdict()] * len(translated)
        if isinstance(body.q, str):
            return JsonLine({field: values[0] for field, values in response.items()})
        return JsonLine(response)

    @app.post("/detect", openapi_extra=request_schema(DetectRequest, form=True))
    async def detect(request: Request) -> Response:
        """Rank the served source languages by their probability for a text, or for texts in one language."""
        body = await service.read_body(request, DetectRequest)
        service.check_size(body.texts)
        return JsonLine([detected._asdict() for detected in _detect(service, body.texts)])


def _add_descriptions(app: FastAPI, service: Service) -> None:
    @app.get("/languages")
    async def languages() -> Response:
        """List the languages with the target languages of each; languages that are only targets have none."""
        targets: dict[str, list[str]] = {}
        pairs = _translated_pairs(service)
        for source, target in pairs:
            targets.setdefault(source, []).append(target)
        for _, target in pairs:
            targets.setdefault(target, [])
        return JsonLine([_named(code) | {"targets": target_codes} for code, target_codes in targets.items()])

    @app.get("/frontend/settings")
    async def settings() -> Response:
        """Return the settings that LibreTranslate's web page loads first."""
        pairs = _translated_pairs(service) or [model.languages for model in service.models.values()]
        source, target = pairs[0]
        return JsonLine(
            {
                "charLimit": service.limits.characters,
                "frontendTimeout": 500,  # milliseconds after the last keystroke
                "apiKeys": service.requires_key,
                "keyRequired": service.requires_key,
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "language": {"source": _named(source), "target": _named(target)},
            }
        )


def _translated_pairs(service: Service) -> list[tuple[str, str]]:
    """Return the distinct language pairs, without those of language models, which have no source language."""
    pairs = dict.fromkeys(model.languages for model in service.models.values())
    return [pair for pair in pairs if pair[0] != NO_LANGUAGE]


def _named(code: str) -> dict[str, Any]:
    return {"code": code, "name": _NAMES.get(code.lower(), code)}


def _detect(service: Service, texts: Sequence[str], target: str | None = None) -> list[Detected]:
    """Rank the source languages of all models, or of those for a target; raises HTTPException if there is none.

    Language models, which have no source language, are excluded. Otherwise, numbers and code could be detected as text
    without a language, and a language model would continue them.
    """
    sources = {model.languages[0] for model in service.models.values() if target in (None, model.languages[1])}
    sources.discard(NO_LANGUAGE)
    if not sources:
        if target is None:
            problem = "no model has a source language; detection needs one; serve a translation model"
            raise HTTPException(400, problem)
        raise _no_model(service, "auto", target)
    try:
        return rank_languages(sources, texts)
    except UserError as error:
        raise HTTPException(400, str(error)) from error


def _find_model(service: Service, source: str, target: str) -> ServedModel:
    """Return the first model of a language pair; raises HTTPException if there is none."""
    for model in service.models.values():
        if model.languages == (source, target):
            return model
    raise _no_model(service, source, target)


def _no_model(service: Service, source: str, target: str) -> HTTPException:
    pairs = dict.fromkeys(" to ".join(map(repr, model.languages)) for model in service.models.values())
    return HTTPException(400, f"no model translates {source!r} to {target!r}; choose one of {', '.join(pairs)}")
