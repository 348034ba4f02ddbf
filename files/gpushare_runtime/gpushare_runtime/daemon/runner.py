# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The frame of both daemons: log, signals, exit status, the parts that run until one ends, and reports to systemd (sd_notify)."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, NoReturn

from gpushare_runtime.daemon.listener import hang_up_on_waiting
from gpushare_runtime.daemon.log_line import LogLine
from gpushare_runtime.errors import GpushareError

log = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2
"""The settings are wrong: a restart with the same settings does not help. argparse uses it as well."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ENDING_SECONDS: Final = 3.0
"""A cancelled part has so long to complete what it began; then it is cancelled again."""
_BEAT_SECONDS: Final = 10.0
# Of one part in systemd's status: systemd ignores a message of 4 KiB, and the last part counts as well.
_MOST_WORDS: Final = 400


class FatalError(GpushareError):
    """The daemon cannot start or continue; the text says what to change. restart: a new process with the same settings is enough."""

    def __init__(self, text: str, *, restart: bool = False) -> None:
        super().__init__(text)
        self.restart = restart


def add_options(parser: argparse.ArgumentParser) -> None:
    """The option --log-level."""
    # argparse checks the default as well, and so the environment.
    default = os.environ.get("LOG_LEVEL") or "info"
    words = f"{', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}"
    parser.add_argument("--log-level", type=_log_level, default=default, metavar="LEVEL", help=f"{words} (or LOG_LEVEL); default info")


def _log_level(text: str) -> str:
    if text not in LOG_LEVELS:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a log level; expected one of {', '.join(LOG_LEVELS)}")
    return text


class Signals:
    """stop: set by SIGTERM and SIGINT; reload: set by SIGHUP. Create it first: a signal without a handler ends the process."""

    def __init__(self) -> None:
        self.stop, self.reload = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)

    def _stop(self) -> None:
        notify("STOPPING=1")
        self.stop.set()


def run(
    serve: Callable[[Signals], Coroutine[Any, Any, None]],
    log_level: str,
    in_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    node: str = "",
) -> int:
    """Run a daemon until `serve` ends. Returns the exit status. serve: raises FatalError; a failed start prints no traceback.

    in_loop: runs it in an event loop of its own. node: the one whose daemon it is, "" for one of the cluster.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LogLine(node))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])

    async def with_signals() -> None:
        await serve(Signals())

    try:
        in_loop(with_signals())
    except FatalError as error:
        why, status = str(error), EXIT_FAILED if error.restart else EXIT_SETTINGS
        log.error("%s", why)
    except Exception as error:
        why, status = f"internal error: {error!r}", EXIT_FAILED
        log.exception("internal error")
    else:
        log.info("stopped")
        return EXIT_STOPPED
    notify(f"STATUS={why}")
    hang_up_on_waiting()
    return status


async def run_all(
    parts: Sequence[Coroutine[Any, Any, None]],
    stop: asyncio.Event | None = None,
    *,
    base: Sequence[Coroutine[Any, Any, None]] = (),
    ending_seconds: float = ENDING_SECONDS,
) -> None:
    """Run all until `stop` is set, this is cancelled or the first of them ends. Returns when all of them have ended.

    base: what the parts depend on; it ends after them. It raises what a part raised, and RuntimeError for a part that returned, because
    none may.
    """
    above = {asyncio.ensure_future(part) for part in parts}
    below = {asyncio.ensure_future(part) for part in base}
    tasks = above | below
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
            raise RuntimeError(f"{task.get_coro()!r} ended by itself")
    finally:
        for stage in ({stopping}, above, below):
            await _end(stage, ending_seconds)
        # asyncio logs an exception that nothing retrieved.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end(tasks: Collection[asyncio.Future[Any]], seconds: float) -> None:
    left = set(tasks)
    while left:
        # It is repeated, because asyncio.wait_for may swallow a cancellation that coincides with its result. Not immediately, because a
        # second cancellation interrupts what a part does at its end.
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=seconds)


# systemd.


def notify(state: str) -> bool:
    """Send e.g. "READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=…", and never wait. False if systemd does not receive it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), socket.MSG_DONTWAIT, address)
    except OSError:
        # systemd restarts, or its queue is full: not a reason to end.
        return False
    return True


def watchdog_interval() -> float | None:
    """Seconds between two WATCHDOG=1, a third of systemd's timeout; None without a watchdog."""
    usec, pid = os.environ.get("WATCHDOG_USEC"), os.environ.get("WATCHDOG_PID")
    if not usec or (pid and int(pid) != os.getpid()):
        return None
    return int(usec) / 1_000_000 / 3


async def keep_alive(ready: Callable[[], bool]) -> NoReturn:
    """Feed the watchdog as long as the event loop runs. Each beat repeats readiness, in case its first message was lost."""
    interval = watchdog_interval()
    while True:
        lines = [*(["WATCHDOG=1"] if interval else []), *(["READY=1"] if ready() else [])]
        if lines:
            notify("\n".join(lines))
        await asyncio.sleep(interval or _BEAT_SECONDS)


class Status:
    """The state of each part of a daemon, in the log and in systemd's status. required: the parts that must be ok for readiness.

    ready: whether systemd was told that the daemon has started, so that units ordered after it may start. It stays so.
    """

    def __init__(self, required: Collection[str]) -> None:
        self._required = frozenset(required)
        self._parts: dict[str, tuple[bool, str]] = {}
        self._waiting: set[str] = set()
        self.ready = False

    def report(self) -> tuple[bool, str]:
        """Whether the daemon does its work and no part is degraded, and a line for each part, degraded ones first."""
        missing, degraded = self.readiness()
        return not missing and not degraded, "\n".join(
            f"{'ok' if good else 'degraded'}: {name}: {words}" for name, (good, words) in self._sorted()
        )

    def readiness(self) -> tuple[list[str], list[str]]:
        """The parts whose failure keeps the daemon from its work, and the others that are degraded."""
        missing = [name for name in sorted(self._required) if not self._parts.get(name, (False, ""))[0]]
        return missing, [name for name, (good, _) in self._parts.items() if not good and name not in self._required]

    def ok(self, part: str, text: str) -> None:
        self.set(part, True, text)

    def degraded(self, part: str, text: str) -> None:
        """text: what is wrong and what to do."""
        self.set(part, False, text)

    def set(self, part: str, ok: bool, text: str) -> None:
        if self._parts.get(part) == (ok, text):
            return
        self._parts[part] = ok, text
        log.log(logging.INFO if ok else logging.ERROR, "%s: %s", part, text)
        status = f"STATUS={'; '.join(f'{name}: {_shortened(words)}' for name, (_, words) in self._sorted())}"
        notify("\n".join([*self._start(), status]))

    def waits(self, *parts: str) -> None:
        """These required parts wait for what systemd may have ordered after this daemon: for its start they count as if they were ok."""
        self._waiting.update(parts)
        for line in self._start():
            notify(line)

    def wait_no_longer(self) -> None:
        """The daemon has started, whatever it lacks: others wait for its start."""
        self.waits(*self._required)

    def _start(self) -> list[str]:
        """The message that the daemon has started, once."""
        if self.ready or not all(name in self._waiting or self._parts.get(name, (False, ""))[0] for name in self._required):
            return []
        self.ready = True
        return ["READY=1"]

    def _sorted(self) -> list[tuple[str, tuple[bool, str]]]:
        """The degraded parts come first: systemctl shows one line."""
        return sorted(self._parts.items(), key=lambda item: item[1][0])


def _shortened(words: str) -> str:
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"
