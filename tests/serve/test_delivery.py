"""Results of worker threads for an event loop: one wake-up for many, none lost."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from nmt.serve.delivery import Delivery


def run_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)


def test_results_that_are_ready_together_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    futures: list[Future[int]] = [Future() for _ in range(10)]

    def finish() -> None:
        futures[0].cancel()
        futures[1].set_exception(ValueError())
        for future in futures[2:]:
            future.set_result(1)

    async def wait() -> int:
        loop, num_calls = asyncio.get_running_loop(), 0
        call_soon = loop.call_soon_threadsafe

        def count(*arguments: Any) -> asyncio.Handle:
            nonlocal num_calls
            num_calls += 1
            return call_soon(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        delivery = Delivery(loop)
        signals = [delivery.watch(future) for future in futures]
        signals[2].cancel()  # as by a request after a timeout
        run_thread(finish)  # blocks the loop
        done, _ = await asyncio.wait(signals, timeout=60)
        assert len(done) == len(signals)
        return num_calls

    assert asyncio.run(wait()) == 1


@pytest.mark.slow
def test_no_result_of_several_threads_is_lost() -> None:
    async def wait() -> None:
        delivery = Delivery(asyncio.get_running_loop())
        for _ in range(50):
            futures: list[Future[int]] = [Future() for _ in range(40)]
            signals = [delivery.watch(future) for future in futures]

            def finish(own: list[Future[int]]) -> None:
                for future in own:
                    future.set_result(1)

            for number in range(4):
                threading.Thread(target=finish, args=(futures[number::4],)).start()
            _, pending = await asyncio.wait(signals, timeout=60)
            assert not pending

    asyncio.run(wait())


def test_results_for_a_closed_loop_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    future: Future[int] = Future()
    Delivery(loop).watch(future)
    loop.close()
    future.set_result(1)
    assert not caplog.records  # of an exception in the callback
