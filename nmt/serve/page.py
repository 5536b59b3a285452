"""The web page: static files of this package, without external resources."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, HTTPException, Response

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`, and its other files under `/page/`."""
    web = files("nmt.serve") / "web"
    responses = {file.name: _response(file.name, file.read_bytes()) for file in web.iterdir()}

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        """Return the page."""
        return responses["index.html"]

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        """Return a file of the page."""
        if name not in responses:
            raise HTTPException(404, f"the page has no file {name!r}")
        return responses[name]


def _response(name: str, content: bytes) -> Response:
    media_type = f"{_MEDIA_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Response(content, media_type=media_type, headers=_HEADERS)
