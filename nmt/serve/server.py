"""The process of the server: its socket, slow clients, and its orderly end."""

from __future__ import annotations

import asyncio
import socket
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.logs import say
from nmt.processes.interruption import Interrupted
from nmt.recipe import UserError
from nmt.serve.app import build_app
from nmt.serve.service import Service

# Until a request must have begun: on a new connection, and between two requests. Headers count, a body does not.
SECONDS_FOR_HEADERS = 10


def open_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address, but not listening yet; UserError where the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot listen on {host}, port {port}: {error}; choose another --host or --port") from error
    return bound


def run_server(service: Service, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, and return when all requests that had come are answered.

    A second signal ends the server at once: Interrupted.
    """
    config = uvicorn.Config(
        build_app(service),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # what is no HTTP is not worth a line
        access_log=False,
        server_header=False,
        timeout_keep_alive=SECONDS_FOR_HEADERS,
    )
    server = _Server(config, service)
    server.run([bound])
    if server.force_exit:
        raise Interrupted(status=128 + server.signal)
    for model in service.models.values():
        model.batcher.close()


class _Server(uvicorn.Server):
    """Drains after the first signal: what has come is answered, and what comes then is refused."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.signal = 0
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends the server at once."""
        self.signal = sig
        if self._service.is_draining:
            self.should_exit = self.force_exit = True
        self._service.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where: signals are handled from before on."""
        await super().startup(sockets)
        names = ", ".join(f"{model.name} ({model.about})" for model in self._service.models.values())
        for host, port, *_ in (one.getsockname() for one in sockets or ()):
            say(f"serving {names} on http://{f'[{host}]' if ':' in host else host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, several times a second."""
        if self._service.is_draining and not self._service.num_active:
            self.should_exit = True
        return await super().on_tick(counter)


class _Protocol(H11Protocol):
    """Closes a connection on which a request does not begin in time, or begins with one byte after the other."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock, which a whole request head stops."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Read on; other than in uvicorn, the clock runs until the head is whole."""
        self.conn.receive_data(data)
        self.handle_events()
