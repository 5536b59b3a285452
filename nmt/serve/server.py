"""The server process: socket, connection timeouts and graceful shutdown."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.errors import UserError
from nmt.logs import print_line, say
from nmt.processes.interruption import EXIT_STATUS, SignalCopies, handling
from nmt.serve.app import build_app
from nmt.serve.messages import JsonLine
from nmt.serve.service import Service

HEADER_TIMEOUT = 10
"""Seconds until a request head must be complete, after connecting or after the previous response."""

_OPEN_FILES = 1_024  # if there is no limit
_MAX_JOINED_BYTES = 16_384  # above this, copying costs more than a system call
_BATCH_SECONDS = 1.0  # after the last response, for a batch whose requests have all ended


def open_socket(host: str, port: int) -> socket.socket:
    """Bind a socket without listening; raises UserError if the address is not available."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot listen on {host}, port {port}: {error}; choose another --host or --port") from error
    return bound


def run_server(
    service: Service, bound: socket.socket, origins: Sequence[str] = (), hosts: Sequence[str] = ("*",)
) -> None:
    """Serve until SIGTERM, SIGUSR1, SIGHUP or Ctrl-C, then finish accepted requests and return.

    A second signal ends the process immediately, with a status of `EXIT_STATUS`. origins, hosts: see `build_app`
    """
    if sys.platform == "linux":  # otherwise, a client that stops reading blocks its request and the shutdown
        milliseconds = round(1_000 * max(HEADER_TIMEOUT, service.limits.seconds))
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)  # accepted sockets inherit it
    config = uvicorn.Config(
        build_app(service, origins, hosts),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # no lines about invalid HTTP
        access_log=False,
        server_header=False,
        timeout_keep_alive=HEADER_TIMEOUT,
    )
    server = _Server(config, service)
    server.run([bound])
    with server.capture_signals():
        have_ended = [model.batcher.close(_BATCH_SECONDS) for model in service.models.values()]
        if not all(have_ended):
            say("a batch is still running, but its requests have timed out or were canceled: exiting without it")
            os._exit(0)  # an orderly exit would wait for it


class _Server(uvicorn.Server):
    """After the first signal, completes accepted requests and rejects new ones."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._copies = SignalCopies()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle the signals that end a command; uvicorn handles only SIGINT and SIGTERM."""
        with handling(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after the first signal and exit at a second one that is not a copy of it."""
        if self._copies.is_copy():
            return
        if self._service.is_draining:
            try:
                print_line("nmt: interrupted")
            finally:  # an orderly exit waits for the threads of torch, or aborts
                os._exit(EXIT_STATUS[signal.Signals(sig)])
        self._service.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen and log the address. Signal handlers are already installed."""
        await super().startup(sockets)
        names = ", ".join(f"{model.name} ({model.description})" for model in self._service.models.values())
        for listening in sockets or ():
            host, port, *_ = listening.getsockname()
            if ":" in host:  # IPv6
                host = f"[{host}]"
            say(f"serving {names} on http://{host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Return whether to exit; called several times a second."""
        if self._service.is_draining:
            self._service.end_receiving()
            self.should_exit = self.should_exit or not self._service.num_active
        return await super().on_tick(counter)


class _JoinedWrites:
    """A transport that writes the head and body of a response, which uvicorn passes separately, in one system call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._data = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write data in the next iteration of the event loop, or immediately if the buffer is large."""
        if data and not self._data:
            self._loop.call_soon(self._flush)
        self._data += data
        if len(self._data) > _MAX_JOINED_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the buffered data and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._data:
            self._transport.write(bytes(self._data))
            self._data.clear()


def max_connections() -> int:
    """Return half the limit on open files. If the process reached that limit, new clients would get no response."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_OPEN_FILES if limit == resource.RLIM_INFINITY else limit) // 2


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Reject a request on a connection beyond the limit."""
    headers = {"retry-after": "1", "connection": "close"}
    response = JsonLine({"error": "the server has too many connections; try again later"}, 503, headers)
    await response(scope, receive, send)


class _Protocol(H11Protocol):
    """Limits the number of connections, and closes one if no complete request head arrives in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout; a complete request head stops it."""
        super().connection_made(cast(asyncio.Transport, _JoinedWrites(transport, self.loop)))
        if len(self.connections) > max_connections():
            self.app = _refuse
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Process data. Unlike uvicorn's method, this one does not stop the timeout at the first byte."""
        self.conn.receive_data(data)
        self.handle_events()
