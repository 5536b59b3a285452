"""Failure detection for multi-process jobs: finds ranks that died or hang and ends the job with one message.

Every rank increments a heartbeat at least once a second in the store that torch uses for rendezvous, and reads the
heartbeats of the others. torchrun serves that store; without torchrun, rank 0 does. The first rank that finds a failure
writes it to the store as the verdict and prints it. The others read the verdict and exit silently.

torch alone does not name the lost rank: Gloo reports an address or a timeout, NCCL a timeout of the collective, and
`monitored_barrier` needs Gloo and one more synchronization per step. A stopped process (SIGSTOP) cannot exit by itself;
torchrun and Slurm kill it 30 seconds after their SIGTERM.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined] # documented as public

from nmt.errors import JobEnded, UserError
from nmt.processes.interruption import Interrupted

MAX_HEARTBEAT_SECONDS = 1.0
EXIT_SECONDS = 5.0  # time for a process to exit by itself after a verdict
POLL_SECONDS = 0.05
INTERRUPTED_SECONDS = 3.0  # for rank 0 to report a signal that all ranks received

# After a broken connection: missed heartbeats that identify the lost rank, and checks before giving up.
SUSPECT_MISSED = 4
SUSPECT_CHECKS = 10
# The process that found a failure exits after this many heartbeats, because the store may end with it.
VERDICT_HEARTBEATS = 3

NO_VERDICT = "none"
LEFT = "left"


@dataclass
class Peer:
    """One rank as seen by the others.

    Counts are in heartbeats of the observer, so suspending its machine does not make other ranks look lost.

    heartbeat: last value read; LEFT after the rank announced its exit
    synchronizations: synchronization points that it has reached
    missed: heartbeats without a new value
    behind: heartbeats for which others have waited for it
    dead: heartbeats since its process disappeared
    """

    name: str
    machine: str
    pid: int
    heartbeat: str = ""
    synchronizations: int = 0
    missed: int = 0
    behind: int = 0
    dead: int = 0

    @property
    def has_left(self) -> bool:
        """Return whether it announced its exit."""
        return self.heartbeat == LEFT

    def observe(self, heartbeat: str, *, is_dead: bool) -> None:
        """Record one reading of its heartbeat."""
        self.missed = self.missed + 1 if heartbeat == self.heartbeat else 0
        self.dead = self.dead + 1 if is_dead else 0
        self.heartbeat = heartbeat
        if not self.has_left:
            synchronizations = int(heartbeat.split()[1])
            self.behind = self.behind if synchronizations == self.synchronizations else 0
            self.synchronizations = synchronizations


def join_job(store: Store, rank: int, size: int, timeout: float) -> tuple[str, list[Peer]]:
    """Wait for all ranks; return a job id and all peers in rank order.

    After an elastic restart the store still holds the keys of earlier processes, and torchrun's restart count differs
    between machines (pytorch#108158). Therefore each rank publishes a record of its host, its pid and a random id, and
    rank 0 publishes the list of all records until every rank has found its own record in it. The hash of that list is
    the job id, which prefixes all keys of the job.

    Raises:
        UserError: a rank is missing after `timeout` seconds.
    """
    record = f"{_machine_id()} {socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}"
    keys = [f"record/{other}" for other in range(size)]
    store.set(keys[rank], record)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if rank == 0 and store.check(keys):
            store.set("list", json.dumps([content.decode() for content in store.multi_get(keys)]))
        if store.check(["list"]):
            content = store.get("list")
            records = json.loads(content)
            if len(records) == size and records[rank] == record:
                job_id = hashlib.sha256(content).hexdigest()[:16]
                if rank == 0:
                    store.set(f"{job_id}/verdict", NO_VERDICT)
                store.set(f"{job_id}/heartbeat/{rank}", "0 0")
                if store.check([f"{job_id}/heartbeat/{other}" for other in range(size)]):
                    return job_id, [_peer(other, size, found) for other, found in enumerate(records)]
        time.sleep(POLL_SECONDS)
    missing = ", ".join(str(other) for other in range(size) if not store.check([keys[other]])) or "unknown"
    raise UserError(
        f"{size} processes did not all join within {timeout:g} seconds (missing ranks: {missing}); all need the same "
        "MASTER_ADDR, MASTER_PORT and WORLD_SIZE; see the output of the missing ranks"
    )


def _peer(rank: int, size: int, record: str) -> Peer:
    machine, host, pid, _ = record.split()
    return Peer(f"rank {rank} of {size} (host {host}, pid {pid})", machine, int(pid))


class FailureDetector:
    """Monitors all ranks of a job from one of them, in two threads, from construction to `leave`.

    synchronizations: synchronization points that this process has reached; counted by the main thread
    patience: seconds without a heartbeat after which a rank counts as dead
    timeout: seconds that a rank may be late at a synchronization point
    verdict: reason for the end of the job; empty while it runs
    """

    def __init__(
        self, store: TCPStore, rank: int, size: int, *, patience: float, timeout: float, serves_store: bool, remedy: str
    ) -> None:
        """Join the job and start monitoring.

        Args:
            serves_store: whether the store ends with this process.
            remedy: advice to the user in the message about a failure.

        Raises:
            UserError: a rank is missing after `timeout` seconds.
        """
        self.patience, self.timeout = patience, timeout
        self.synchronizations = 0
        self.verdict = ""
        self._rank, self._serves_store, self._remedy = rank, serves_store, remedy
        self._job_id, self._peers = join_job(PrefixStore("nmt", store), rank, size, timeout)
        self._me = self._peers[rank]
        self._shared_store = store
        # A connection serves one request at a time, and torch's own requests block for a long time.
        own_store = TCPStore(
            store.host, store.port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
        self._store = PrefixStore(f"nmt/{self._job_id}", own_store)
        self._keys = [f"heartbeat/{other}" for other in range(size)]
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._interval = min(MAX_HEARTBEAT_SECONDS, patience / 10)
        self._exit_heartbeats = int(EXIT_SECONDS / self._interval)
        self._heartbeats = self._responses = self._tasks = 0
        self._is_leaving, self._has_left = threading.Event(), threading.Event()
        self._verdict_lock = threading.Lock()
        self._heartbeat_thread = threading.Thread(target=self._run_heartbeats, name="heartbeat", daemon=True)
        self._store_thread = threading.Thread(target=self._monitor_store, name="store-monitor", daemon=True)
        self._heartbeat_thread.start()
        self._store_thread.start()

    # --- Main thread --------------------------------------------------------------------------------------------------

    def explain(self, error: BaseException) -> JobEnded:
        """End the job because of `error`, report the cause once, and return the exception to raise instead.

        A broken connection is attributed to the rank that broke it. The first user error of all ranks is shown; other
        exceptions are shown with their traceback.
        """
        with _ignore_sigterm():  # torchrun sends it as soon as another rank has exited
            if _is_broken_connection(error):
                self._conclude(self._find_cause(error))
            elif isinstance(error, UserError):
                self._conclude(str(error) if self._rank == 0 else f"{self._me.name}: {error}")
            elif isinstance(error, Interrupted) and self._rank > 0:
                self._await_verdict(INTERRUPTED_SECONDS)  # if all ranks are interrupted, rank 0 has a better message
                self._conclude(f"{self._me.name} was interrupted by a signal; {self._remedy}")
            else:
                # Ctrl-C and a closed output pipe need no message.
                is_failure = isinstance(error, Exception) and not isinstance(error, BrokenPipeError)
                if is_failure:
                    os.write(2, "".join(traceback.format_exception(error)).encode())
                cause = f"{type(error).__name__}: {_first_line(error)}"
                self._conclude(f"{self._me.name} failed: {cause}; {self._remedy}", is_shown=is_failure)
        return JobEnded(self.verdict)

    def _await_verdict(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.verdict and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def leave(self) -> None:
        """Announce the exit of this process; wait for the others while they need the store or the verdict."""
        self._is_leaving.set()
        self._heartbeat_thread.join()
        with suppress(RuntimeError):  # the store may be gone
            self._announce_exit()
            if self._serves_store and self.verdict:  # torch prints a stack if others read from a store that is gone
                time.sleep(4 * POLL_SECONDS)
        self._has_left.set()
        self._store_thread.join()

    def _announce_exit(self) -> None:
        """Announce the exit of this process, and wait for the others while they need the store or the verdict."""
        started = time.monotonic()
        self._store.set(self._keys[self._rank], LEFT)
        while self._is_needed(time.monotonic() - started):
            time.sleep(POLL_SECONDS)

    def _is_needed(self, waited: float) -> bool:
        """Return whether another rank may need the store or the verdict, `waited` seconds after the announcement.

        A slow rank would report a second failure if the store ended before it has read the verdict. A rank that the
        verdict names is not slow but lost, or has set the verdict itself.
        """
        for peer, heartbeat in zip(self._peers, self._read(self._keys), strict=True):
            if heartbeat == LEFT or self._is_dead(peer):
                continue
            is_awaited = self._serves_store and peer.name not in self.verdict
            if waited < max(EXIT_SECONDS if self.verdict else 0.0, self.patience if is_awaited else 0.0):
                return True
        return False

    def _end_process(self) -> None:
        """Exit, because the main thread may block in a collective that nothing else interrupts."""
        with suppress(RuntimeError):
            if self._serves_store:
                self._announce_exit()
            else:
                self._store.set(self._keys[self._rank], LEFT)
        os._exit(1)

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0 while the others wait without a timeout; raises JobEnded when the job ends."""
        self._tasks += 1
        done = f"done/{self._tasks}"
        if self._rank == 0:
            work()
            self._store.set(done, "yes")
        self._wait({done: self._peers[0]}, self._interval / 4)

    def barrier(self) -> None:
        """Wait for all ranks without a timeout; raises JobEnded when the job ends."""
        self._tasks += 1
        keys = {f"barrier/{self._tasks}/{peer_rank}": peer for peer_rank, peer in enumerate(self._peers)}
        self._store.set(f"barrier/{self._tasks}/{self._rank}", "yes")
        self._wait(keys, POLL_SECONDS)

    def _wait(self, keys: Mapping[str, Peer], interval: float) -> None:
        """Wait until each key has been set by its rank; raises JobEnded when the job ends."""
        while not self._store.check(list(keys)):
            for key, peer in keys.items():
                if peer.has_left and not self._store.check([key]):
                    same = "all processes must have the same input and options"
                    self._conclude(f"{peer.name} has ended, but {self._me.name} has not; {same}; {self._remedy}")
            if self.verdict:
                raise JobEnded(self.verdict)
            time.sleep(interval)

    def process_group_store(self) -> Store:
        """Return a part of the store that only this job uses; torch may block on it."""
        return PrefixStore(f"nmt/{self._job_id}/process-group", self._shared_store)

    # --- Monitoring threads -------------------------------------------------------------------------------------------

    def _run_heartbeats(self) -> None:
        try:
            while not self._is_leaving.wait(self._interval):
                self._send_and_check()
        except RuntimeError:  # the connection to the store broke
            if self._is_leaving.is_set():
                return
            if self._conclude(self._store_failure()) or not self._is_leaving.wait(EXIT_SECONDS):
                os._exit(1)

    def _monitor_store(self) -> None:
        """Exit when the store no longer responds: torch then blocks beyond every timeout."""
        responses = missed = 0
        while not self._has_left.wait(self._interval):
            missed = missed + 1 if self._responses == responses else 0
            responses = self._responses
            if missed * self._interval >= self.patience:
                if not self.verdict:
                    _print_message(self._store_failure())
                os._exit(1)

    def _send_and_check(self) -> None:
        """Send one heartbeat and check the heartbeats of the others."""
        # Look for dead processes before reading: a rank announces its exit before it dies.
        are_dead = [self._is_dead(peer) for peer in self._peers]
        self._heartbeats += 1
        self._store.set(self._keys[self._rank], f"{self._heartbeats} {self.synchronizations}")
        *heartbeats, verdict = self._read([*self._keys, "verdict"])
        if verdict != NO_VERDICT:
            self.verdict = _unsigned(verdict)
            self._exit_heartbeats -= 1
            if self._exit_heartbeats <= 0:
                self._end_process()
            return
        for peer, heartbeat, is_dead in zip(self._peers, heartbeats, are_dead, strict=True):
            peer.observe(heartbeat, is_dead=is_dead)
        furthest = max(peer.synchronizations for peer in self._peers if not peer.has_left)
        for peer in self._peers:
            peer.behind = peer.behind + 1 if peer.synchronizations < furthest else 0
        cause = self._failure(self.patience)
        if cause and self._conclude(cause):
            time.sleep(VERDICT_HEARTBEATS * self._interval)
            self._end_process()

    def _failure(self, patience: float) -> str:
        """Return why the job cannot continue, or an empty string; `patience` in seconds."""
        if self._launcher not in (None, os.getppid()):
            return f"the torchrun process of {self._me.name} has exited; {self._remedy}"
        for peer in self._peers:
            if peer.has_left:
                continue
            if peer.dead >= 2:  # its announcement may still have been on the way at the first check
                return f"{peer.name} died; {self._remedy}"
            if peer.missed * self._interval >= patience:
                seconds = f"{peer.missed * self._interval:.0f} seconds"
                return f"{peer.name} sent no heartbeat for {seconds} (dead, stopped or disconnected); {self._remedy}"
            if peer.behind * self._interval >= self.timeout:
                return (
                    f"{peer.name} hangs: the other ranks have waited for it for {self.timeout:g} seconds; "
                    f"{self._remedy}, or raise NMT_TIMEOUT_SECONDS if it is only slow"
                )
        return ""

    def _store_failure(self) -> str:
        server = self._peers[0].name if self._launcher is None else f"the torchrun process of {self._peers[0].name}"
        address = f"{self._shared_store.host}:{self._shared_store.port}"
        return f"no response from the store at {address}: {server} is dead, stopped or disconnected; {self._remedy}"

    def _find_cause(self, error: BaseException) -> str:
        """Wait for the heartbeats to show which rank broke a connection."""
        for _ in range(SUSPECT_CHECKS):
            if cause := self.verdict or self._failure(SUSPECT_MISSED * self._interval):
                return cause
            time.sleep(self._interval)
        return f"{self._me.name} lost its connection, but all ranks respond ({_first_line(error)}); {self._remedy}"

    def _conclude(self, verdict: str, *, is_shown: bool = True) -> bool:
        """Set and print the verdict; return False if there is one already."""
        signed = f"{self._rank} {verdict}"  # distinguishes ranks that find the same cause
        with self._verdict_lock:  # no thread exits between writing and printing
            try:
                stored = self._store.compare_set("verdict", NO_VERDICT, signed).decode()
            except RuntimeError:  # without the store every rank reports for itself
                stored = signed
            is_first = stored == signed and not self.verdict
            self.verdict = self.verdict or _unsigned(stored)
            if is_first and is_shown:
                _print_message(verdict)
            return is_first

    def _is_dead(self, peer: Peer) -> bool:
        """Return whether the process of another rank on this machine has ended; False on other machines."""
        # Without /proc, as on macOS, this process cannot look itself up.
        if peer is self._me or peer.machine != self._me.machine:
            return False
        try:
            stat = Path(f"/proc/{peer.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in ("Z", "X")  # a zombie counts as dead

    def _read(self, keys: list[str]) -> list[str]:
        contents = [content.decode() for content in self._store.multi_get(keys)]
        self._responses += 1
        return contents


def _machine_id() -> str:
    """Return an id of the process namespace: boot id of the machine and PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return uuid.uuid4().hex  # no process can be looked up here


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether torch reports a lost connection; Gloo has no exception type for it."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _unsigned(verdict: str) -> str:
    return verdict.partition(" ")[2]


@contextmanager
def _ignore_sigterm() -> Iterator[None]:
    """Ignore SIGTERM in a `with` block of the main thread, which receives the signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _print_message(message: str) -> None:
    """Write one line to stderr, without Python's buffers and locks, which a blocked thread may hold."""
    line = f"nmt: {' '.join(message.split())}\n"
    if os.isatty(2):
        line = f"\r\x1b[K\x1b[?25h{line}"  # clear the progress bar and show the cursor
    os.write(2, line.encode())
