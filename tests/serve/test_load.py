"""Many clients send unusual lines at the same time: no request is lost, and none gets the answer of another."""

import asyncio
import json
import re

import pytest

from nmt.serve.batching import BatchingOptions
from nmt.serve.service import Limits
from nmt.text.clean import valid_unicode
from tests.cli.nasty_lines import nasty_lines
from tests.serve.conftest import MakeService, run_in_thread

NUM_CLIENTS = 50
LINES = [f"{number} {line}" for number, line in enumerate(nasty_lines(940, num_longest=2))]
LINES += [f"{number}\ud800{number}\udfff" for number in range(50)] + ["", " ", "\x00", "\ud83d", "<b>&amp;</b>"] * 2


@pytest.mark.slow
def test_no_line_is_lost_or_gets_the_answer_of_another(echo_service: MakeService) -> None:
    answers: dict[int, tuple[str, str]] = {}
    waiting = iter(enumerate(LINES))

    async def send_lines(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
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

    async def run_clients(address: tuple[str, int]) -> None:
        await asyncio.gather(*(send_lines(address) for _ in range(NUM_CLIENTS)))

    with run_in_thread(echo_service(batching=BatchingOptions(batch_size=16))) as address:
        asyncio.run(run_clients(address))
    for number, line in enumerate(LINES):
        too_long = len(line) > Limits().characters
        expected = ("413", None) if too_long else ("200", valid_unicode(line).upper())
        assert answers[number] == expected, line[:80]
