"""Many clients at the same time, whose lines are unusual: no request is lost, and none gets the answer of another."""

import asyncio
import json
import re
import socket
import threading
import time

import pytest

from nmt.serve.batching import BatchingOptions
from nmt.serve.server import open_socket, run_server
from nmt.text.clean import valid_unicode
from tests.cli.nasty_lines import nasty_lines
from tests.serve.conftest import MakeService

NUM_CLIENTS = 50
LINES = [f"{number} {line}" for number, line in enumerate(nasty_lines(940, num_longest=2))]
LINES += [f"{number}\ud800{number}\udfff" for number in range(50)] + ["", " ", "\x00", "\ud83d", "<b>&amp;</b>"] * 2


@pytest.mark.slow
def test_no_line_is_lost_or_gets_the_answer_of_another(echo_service: MakeService) -> None:
    service, bound = echo_service(batching=BatchingOptions(batch_size=16)), open_socket("127.0.0.1", 0)
    thread = threading.Thread(target=run_server, args=(service, bound))
    thread.start()
    while not bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # until the server listens
        time.sleep(0.01)
    port = bound.getsockname()[1]
    answers: dict[int, tuple[str, str]] = {}
    waiting = iter(enumerate(LINES))

    async def send_lines() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number, line in waiting:  # shared by all clients
            body = json.dumps({"q": line, "source": "en", "target": "de"})
            head = (
                f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            writer.write(f"{head}\r\n\r\n{body}".encode())
            received = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"\r\ncontent-length: (\d+)", received)
            assert length
            answer = json.loads(await reader.readexactly(int(length[1])))
            answers[number] = received.split(" ", 2)[1], answer.get("translatedText")
        writer.close()

    async def send() -> None:
        await asyncio.gather(*(send_lines() for _ in range(NUM_CLIENTS)))

    asyncio.run(send())
    service.is_draining = True
    thread.join(60)
    for number, line in enumerate(LINES):
        too_long = len(line) > 100_000
        expected = ("413", None) if too_long else ("200", valid_unicode(line).upper())
        assert answers[number] == expected, line[:80]
