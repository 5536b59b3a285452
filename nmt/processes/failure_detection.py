"""The watch that the processes of a job keep over each other: who is there, who died, who hangs, and why it ended.

Beside its work every process counts up a heartbeat, once a second, in the store through which torch's processes find
each other, and reads those of the others; torchrun holds that store, or rank 0 where there is no torchrun. Whoever
first finds a reason to end the job writes it there as the verdict and says it in one line; the others read the verdict
and end without a word. The watch has its own connection to the store, because a connection serves one request at a
time and torch waits long on its own.

A process that was stopped (SIGSTOP) cannot end itself: torchrun sends it SIGTERM and, 30 seconds later, SIGKILL; Slurm
does the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined] # public, says torch's manual

from nmt.recipe import JobEnded, UserError

LONGEST_INTERVAL = 1.0  # seconds between two heartbeats, where the patience allows it
FAREWELL_SECONDS = 5.0  # how long a process may take to end by itself once there is a verdict
MEETING_INTERVAL = 0.05

# Heartbeats that must be missing before a process is suspected of having broken a connection that did break, and how
# often to look around for a suspect.
SUSPICIOUS_SILENCE = 4
LOOKS_FOR_A_SUSPECT = 10
LOOKS_TO_SPREAD_A_VERDICT = 3

NO_VERDICT = "none"
LEFT = "left"


@dataclass
class Peer:
    """What is known of one process of the job; the counts are of the watcher's own looks around, not of a clock.

    So a job that slept as a whole, with its machine, finds nobody silent when it wakes up.
    """

    name: str
    machine: str
    pid: int
    beat: str = ""
    exchanges: int = 0
    silent: int = 0
    behind: int = 0
    dead: int = 0

    @classmethod
    def from_card(cls, rank: int, size: int, card: str) -> Peer:
        """The process that wrote this card at the meeting."""
        machine, host, pid, _ = card.split()
        return cls(f"rank {rank} of {size} (host {host}, pid {pid})", machine, int(pid))

    @property
    def has_left(self) -> bool:
        """Whether it announced its end."""
        return self.beat == LEFT

    def note(self, beat: str, has_died: bool) -> None:
        """Take in what was seen of it this time."""
        self.silent = self.silent + 1 if beat == self.beat else 0
        self.dead = self.dead + 1 if has_died else 0
        self.beat = beat
        if not self.has_left:
            exchanges = int(beat.split()[1])
            self.behind = self.behind if exchanges == self.exchanges else 0
            self.exchanges = exchanges


def meet(store: Store, rank: int, size: int, timeout: float) -> tuple[str, list[Peer]]:
    """Wait until all processes have come; returns a name for this meeting, and all of them in rank order.

    After an elastic restart the store still holds what earlier processes wrote, and torchrun's count of restarts is not
    the same on all machines (pytorch#108158). So rank 0 writes down everyone's card, over and over, until all have
    found their own on the list: that list names the meeting, and every key below its name belongs to it alone.
    Raises UserError when somebody does not come within `timeout` seconds.
    """
    card = f"{_machine()} {socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}"
    cards = [f"card/{other}" for other in range(size)]
    store.set(cards[rank], card)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if rank == 0 and store.check(cards):
            store.set("list", json.dumps([content.decode() for content in store.multi_get(cards)]))
        if store.check(["list"]):
            content = store.get("list")
            listed = json.loads(content)
            if len(listed) == size and listed[rank] == card:
                meeting = hashlib.sha256(content).hexdigest()[:16]
                if rank == 0:
                    store.set(f"{meeting}/verdict", NO_VERDICT)
                store.set(f"{meeting}/beat/{rank}", "0 0")
                if store.check([f"{meeting}/beat/{other}" for other in range(size)]):
                    return meeting, [Peer.from_card(other, size, written) for other, written in enumerate(listed)]
        time.sleep(MEETING_INTERVAL)
    missing = ", ".join(str(other) for other in range(size) if not store.check([cards[other]])) or "unknown"
    raise UserError(
        f"not all {size} processes came within {timeout:.0f} seconds (missing ranks: {missing}); each "
        "must be started with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE; look at the missing ones' output"
    )


class Watch:
    """The watch of one process over all of the job; it begins when all have come.

    exchanges: how often this process has come to where the others wait for it; the main thread counts it up
    patience: seconds without a heartbeat after which a process counts as dead
    timeout: seconds for which a living process may keep the others waiting, and for which all wait for all to come
    verdict: why the job ends; empty as long as it does not
    """

    def __init__(
        self, store: TCPStore, rank: int, size: int, *, patience: float, timeout: float, holds_store: bool, remedy: str
    ) -> None:
        """Raises UserError when not all come.

        holds_store: whether the store ends with this process; remedy: what to do when the job has ended
        """
        self.patience, self.timeout = patience, timeout
        self.exchanges = 0
        self.verdict = ""
        self._rank, self._holds_store, self._remedy = rank, holds_store, remedy
        self._meeting, self._peers = meet(PrefixStore("nmt", store), rank, size, timeout)
        self._me = self._peers[rank]
        self._shared_store = store
        own_store = TCPStore(
            store.host, store.port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
        self._store = PrefixStore(f"nmt/{self._meeting}", own_store)
        self._keys = [f"beat/{other}" for other in range(size)]
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._interval = min(LONGEST_INTERVAL, patience / 10)
        self._looks_left = int(FAREWELL_SECONDS / self._interval)
        self._beats = self._answers = self._tasks = 0
        self._is_leaving, self._has_left = threading.Event(), threading.Event()
        self._one_at_a_time = threading.Lock()
        self._watching = threading.Thread(target=self._keep_watch, name="watch", daemon=True)
        self._guarding = threading.Thread(target=self._guard_the_watch, name="guard", daemon=True)
        self._watching.start()
        self._guarding.start()

    # --- For the main thread ------------------------------------------------------------------------------------------

    def explain(self, error: BaseException) -> JobEnded:
        """End the job because of `error`: say so, unless that is said elsewhere, and return what to raise instead.

        A connection that broke is put down to the process that broke it. Of errors that the user can mend the first is
        shown; those of other processes are its echo. Whatever else failed is shown with its traceback.
        """
        with _deaf_to_sigterm():  # by which torchrun ends this process as soon as it misses another
            if _is_broken_connection(error):
                self._conclude(self._find_culprit(error))
            elif isinstance(error, UserError):
                self._conclude(str(error) if self._rank == 0 else f"{self._me.name}: {error}")
            else:
                # Ctrl-C speaks for itself, and a reader of the output that has gone wants to hear nothing.
                if is_failure := isinstance(error, Exception) and not isinstance(error, BrokenPipeError):
                    os.write(2, "".join(traceback.format_exception(error)).encode())
                what = f"{type(error).__name__}: {_first_line(error)}"
                self._conclude(f"{self._me.name} failed: {what}; {self._remedy}", aloud=is_failure)
        return JobEnded(self.verdict)

    def leave(self) -> None:
        """Tell the others that this process ends; wait for them where they still need the store or the verdict."""
        self._is_leaving.set()
        self._watching.join()
        patience = FAREWELL_SECONDS if self.verdict else self.patience if self._holds_store else 0.0
        deadline = time.monotonic() + patience
        with suppress(RuntimeError):  # the store may be gone by now
            self._store.set(self._keys[self._rank], LEFT)
            while time.monotonic() < deadline and not self._is_alone():
                time.sleep(MEETING_INTERVAL)
        self._has_left.set()
        self._guarding.join()

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Let rank 0 do some work while the others wait, as long as it lives; raises JobEnded when the job ends."""
        self._tasks += 1
        done = f"done/{self._tasks}"
        if self._rank == 0:
            work()
            self._store.set(done, "yes")
        while not self._store.check([done]):
            if self.verdict:
                raise JobEnded(self.verdict)
            time.sleep(self._interval / 4)

    def assemble(self) -> None:
        """Wait until all have come here, as long as they live; raises JobEnded when the job ends."""
        self._tasks += 1
        come = [f"come/{self._tasks}/{other}" for other in range(len(self._peers))]
        self._store.set(come[self._rank], "yes")
        while not self._store.check(come):
            if self.verdict:
                raise JobEnded(self.verdict)
            time.sleep(MEETING_INTERVAL)

    def store_for(self, purpose: str) -> Store:
        """A part of the store that all processes of this job share, and no earlier ones; torch may wait on it."""
        return PrefixStore(f"nmt/{self._meeting}/{purpose}", self._shared_store)

    # --- The watch ----------------------------------------------------------------------------------------------------

    def _keep_watch(self) -> None:
        try:
            while not self._is_leaving.wait(self._interval):
                self._look_around()
        except RuntimeError:  # the connection to the store broke
            if self._is_leaving.is_set():
                return
            if self._conclude(self._store_is_gone()) or not self._is_leaving.wait(FAREWELL_SECONDS):
                os._exit(1)

    def _guard_the_watch(self) -> None:
        """End this process where the store no longer answers, for which torch waits without end past any timeout."""
        answers = missed = 0
        while not self._has_left.wait(self._interval):
            missed = missed + 1 if self._answers == answers else 0
            answers = self._answers
            if missed * self._interval >= self.patience:
                if not self.verdict:
                    _say(self._store_is_gone())
                os._exit(1)

    def _look_around(self) -> None:
        """One heartbeat, and one look at everybody else's."""
        # Who has died is seen before the heartbeats are read: those who leave say so before they die.
        died = [peer.machine == self._me.machine and _has_died(peer.pid) for peer in self._peers]
        self._beats += 1
        self._store.set(self._keys[self._rank], f"{self._beats} {self.exchanges}")
        *beats, verdict = self._read([*self._keys, "verdict"])
        if verdict != NO_VERDICT:
            self.verdict = _without_author(verdict)
            self._looks_left -= 1
            if self._looks_left <= 0:
                os._exit(1)
            return
        for peer, beat, has_died in zip(self._peers, beats, died, strict=True):
            peer.note(beat, has_died)
        furthest = max(peer.exchanges for peer in self._peers if not peer.has_left)
        for peer in self._peers:
            peer.behind = peer.behind + 1 if peer.exchanges < furthest else 0
        if (cause := self._cause(self.patience)) and self._conclude(cause):
            time.sleep(LOOKS_TO_SPREAD_A_VERDICT * self._interval)  # in which the store must not end with this process
            os._exit(1)  # the main thread may hang in an exchange that nothing but this ends

    def _cause(self, patience: float) -> str:
        """Why the job cannot go on, if so; `patience` is in seconds."""
        if self._launcher not in (None, os.getppid()):
            return f"torchrun of {self._me.name} is gone; {self._remedy}"
        for peer in self._peers:
            if peer.has_left:
                continue
            if peer.dead >= 2:  # its last word may still have been on its way at the first look
                return f"{peer.name} died; {self._remedy}"
            if peer.silent * self._interval >= patience:
                silence = f"{peer.silent * self._interval:.0f} seconds"
                return f"{peer.name} has not answered for {silence}: it died, was stopped or is cut off; {self._remedy}"
            if peer.behind * self._interval >= self.timeout:
                return (
                    f"{peer.name} has kept the others waiting for {self.timeout:.0f} seconds: it hangs; "
                    f"{self._remedy}, or raise NMT_TIMEOUT_SECONDS if it only needs longer"
                )
        return ""

    def _store_is_gone(self) -> str:
        holder = self._peers[0].name if self._launcher is None else f"torchrun beside {self._peers[0].name}"
        address = f"{self._shared_store.host}:{self._shared_store.port}"
        return f"the store at {address} does not answer: {holder} died, was stopped or is cut off; {self._remedy}"

    def _find_culprit(self, error: BaseException) -> str:
        """Why a connection broke, after waiting for the heartbeats to tell."""
        for _ in range(LOOKS_FOR_A_SUSPECT):
            if cause := self.verdict or self._cause(SUSPICIOUS_SILENCE * self._interval):
                return cause
            time.sleep(self._interval)
        return f"{self._me.name} lost its connection, though all still answer ({_first_line(error)}); {self._remedy}"

    def _conclude(self, verdict: str, aloud: bool = True) -> bool:
        """Make this the verdict, and say it; returns False if there is one already."""
        signed = f"{self._rank} {verdict}"  # for two processes may find the same words
        with self._one_at_a_time:  # so that nobody ends this process between the writing and the saying
            try:
                found = self._store.compare_set("verdict", NO_VERDICT, signed).decode()
            except RuntimeError:  # with the store gone every process speaks for itself
                found = signed
            is_first = found == signed and not self.verdict
            self.verdict = self.verdict or _without_author(found)
            if is_first and aloud:
                _say(verdict)
            return is_first

    def _is_alone(self) -> bool:
        """Whether all others have left or died."""
        return all(
            beat == LEFT or (peer.machine == self._me.machine and _has_died(peer.pid))
            for peer, beat in zip(self._peers, self._read(self._keys), strict=True)
        )

    def _read(self, keys: list[str]) -> list[str]:
        contents = [content.decode() for content in self._store.multi_get(keys)]
        self._answers += 1
        return contents


def _machine() -> str:
    """A name for where process numbers mean something: this start of this machine, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return uuid.uuid4().hex  # where there is no such file nobody can be looked up


def _has_died(pid: int) -> bool:
    """Whether a process of this machine is no more; one that only waits for its parent to notice is no more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")


def _is_broken_connection(error: BaseException) -> bool:
    """Whether torch says by this that processes lost each other; Gloo says it only in words."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _without_author(verdict: str) -> str:
    return verdict.partition(" ")[2]


@contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """Take no notice of SIGTERM for the length of a `with` block in the main thread, which signals go to."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _say(message: str) -> None:
    """One line on stderr, past Python's buffers and the locks that a hanging thread may hold."""
    line = f"nmt: {' '.join(message.split())}\n"
    if os.isatty(2):
        line = f"\r\x1b[K\x1b[?25h{line}"  # clear the line of a progress bar, and show the cursor that it hid
    os.write(2, line.encode())
