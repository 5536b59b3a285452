"""Protection against web pages of other sites, which a browser on this machine may have open."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import Scope

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\sA-Z/?#@]+")
_DEFAULT_PORT = re.compile(r"http://.*:80|https://.*:443")
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def check_origin(origin: str) -> str:
    """Return an origin; raises ValueError if browsers never send it."""
    if origin != "*" and (not _ORIGIN.fullmatch(origin) or _DEFAULT_PORT.fullmatch(origin)):
        problem = "is not an origin; it must be '*' or a lowercase origin without a path or default port"
        raise ValueError(f"{origin!r} {problem}, such as https://example.org or http://localhost:8080")
    return origin


def check_host(name: str) -> str:
    """Return a host name in lower case; raises ValueError if it is not one."""
    if name != "*" and not _HOST.fullmatch(name.lower()):
        raise ValueError(f"{name!r} is not a host name; it must be '*' or a name without a port, such as example.org")
    return name.lower()


class AccessRules:
    """Which host names and origins requests may have."""

    def __init__(self, origins: Sequence[str] = (), hosts: Sequence[str] = ("*",)) -> None:
        """Allow these origins and host names, or all for `*`; addresses and `localhost` are always allowed as hosts."""
        self._origins, self._hosts = origins, hosts

    def check(self, scope: Scope) -> None:
        """Raise HTTPException for a request that a page of another site may have caused."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if "*" not in self._hosts and not self._allows_host(host):
            problem = f"host {host!r} is not allowed; start the server with --allow-host NAME"
            raise HTTPException(421, f"{problem}, or use its address")
        if scope["method"] in ("GET", "OPTIONS") or "*" in self._origins or origin in self._origins:
            return
        if site := headers.get("sec-fetch-site"):  # as in Go's CrossOriginProtection; proxies may change Host
            is_same = site in ("same-origin", "none")
        else:
            is_same = not origin or origin.partition("://")[2] == host.lower()
        if not is_same:
            problem = f"web pages of {origin or 'other sites'} may not use the server"
            raise HTTPException(403, f"{problem}; start it with --cors ORIGIN to allow them")

    def _allows_host(self, host: str) -> bool:
        """Return whether a `Host` header cannot result from DNS rebinding, which needs a name of the attacker."""
        with suppress(ValueError):  # raised for invalid addresses
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
            is_local = name == "localhost" or name.endswith(".localhost")
            return is_local or name in self._hosts or bool(ipaddress.ip_address(name))
        return not host  # HTTP/1.0, as in health checks; browsers send it
