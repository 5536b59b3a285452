"""Protection against web pages of other sites, which a browser on this machine may have open."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import Scope

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\sA-Z/?#@]+")
_DEFAULT_PORT = re.compile(r"http://.*:80|https://.*:443")
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def check_origin(origin: str) -> str:
    """Return an origin or `*`; raises ValueError for `null` and for forms that browsers never send."""
    if origin != "*" and (not _ORIGIN.fullmatch(origin) or _DEFAULT_PORT.fullmatch(origin)):
        problem = "is not an origin; it must be '*' or a lowercase origin without a path or default port"
        raise ValueError(f"{origin!r} {problem}, such as https://example.org or http://localhost:8080")
    return origin


def check_host(name: str) -> str:
    """Return a host name in lower case, or `*`; raises ValueError for anything else."""
    if name != "*" and not _HOST.fullmatch(name.lower()):
        raise ValueError(f"{name!r} is not a host name; it must be '*' or a name without a port, such as example.org")
    return name.lower()


def check_access(scope: Scope, origins: Collection[str], hosts: Collection[str]) -> None:
    """Raise HTTPException for a request that a page of another site may have caused.

    origins, hosts: the allowed origins and host names, or `*` for all; addresses and `localhost` are always allowed
    """
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not _is_allowed_host(host, hosts):
        problem = f"host {host!r} is not allowed; start the server with --allow-host NAME"
        raise HTTPException(421, f"{problem}, or use its address")
    if scope["method"] in ("GET", "OPTIONS") or _is_same_origin(headers):
        return
    origin = headers.get("origin", "")
    if "*" not in origins and origin not in origins:
        problem = f"web pages of {origin or 'other sites'} may not use the server"
        raise HTTPException(403, f"{problem}; start it with --cors ORIGIN to allow them")


def _is_allowed_host(host: str, hosts: Collection[str]) -> bool:
    """Return whether a `Host` header is allowed. DNS rebinding needs a host name, so all addresses are safe."""
    if "*" in hosts or not host:  # HTTP/1.0 clients may omit it; browsers always send it
        return True
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        if name == "localhost" or name.endswith(".localhost") or name in hosts:
            return True
        ipaddress.ip_address(name)
    except ValueError:  # a name, or an invalid address
        return False
    return True


def _is_same_origin(headers: Headers) -> bool:
    """Return whether no page of another origin caused a request, by the rules of Go's CrossOriginProtection."""
    site = headers.get("sec-fetch-site")
    if site:  # more reliable than Host, which proxies may change
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return not origin or origin.partition("://")[2] == headers.get("host", "").lower()
