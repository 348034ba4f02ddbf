# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-pki: make, renew and judge the certificates between kube-scheduler and the extender of this host, or of its dashboard."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gpushare_runtime import __version__
from gpushare_runtime.daemon.files import replace_files
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.pki.folder import CA, EXTENDER, Folder, Purpose, dashboard

NAME: Final = "gpushare-pki"
KEEP_SECONDS: Final = 6 * 3600.0
_RELOAD_DUE: Final = ".reload"
_NAME: Final = re.compile(r"(?=.{1,253}\Z)(?=.*[A-Za-z])[A-Za-z0-9]([-A-Za-z0-9]{0,62})(\.[A-Za-z0-9][-A-Za-z0-9]{0,62})*", re.ASCII)


def ensure(folder: Folder, now: datetime, unit: str, systemctl: Callable[[str], None]) -> list[str]:
    """Make and renew what is due; the names of what changed. unit: to reload when the server has something new to read, or ""."""
    with folder.locked():
        due = folder.due(now)
        marker = folder.path / _RELOAD_DUE
        if unit and {CA.certificate, folder.purpose.leaves[0].certificate} & set(due.contents):
            # It is kept until the reload has happened: a crash or a failure in between must not leave the old certificate in use.
            marker.touch(mode=0o600)
        folder.write(due)
        if unit and marker.exists():
            systemctl(unit)
            marker.unlink()
    return due.names


def copy(folder: Folder, to: Path) -> list[str]:
    """The files that the server needs, without the key of the CA, as files of this user's own; the names of those that were other ones."""
    leaf, changed = folder.purpose.leaves[0], {}
    for name in (leaf.key, leaf.certificate, CA.certificate):
        content, place = (folder.path / name).read_bytes(), to / name
        if not place.is_file() or place.read_bytes() != content:
            changed[place] = content
    replace_files(changed, dict.fromkeys(changed, 0o600))
    return [place.name for place in changed]


def keep(folder: Folder, now: Callable[[], datetime], to: Path, stop: threading.Event, seconds: float = KEEP_SECONDS) -> None:
    """Renew what is due and copy it, again and again until `stop` is set. OSError, GpushareError at the first time only."""
    first = True
    while True:
        try:
            changed = [*ensure(folder, now(), "", try_reload), *copy(folder, to)]
        except (OSError, GpushareError) as error:
            if first:
                raise
            # The present files last for months more.
            print(f"{NAME}: not renewed, tried again in {seconds:g} s: {error}", file=sys.stderr, flush=True)
        else:
            print(json.dumps({"changed": changed}), flush=True)
        first = False
        if stop.wait(seconds):
            return


def try_reload(unit: str) -> None:
    """Reload the unit if it runs; one that does not reads the files when it starts. It raises GpushareError with systemctl's words."""
    try:
        done = subprocess.run(
            ["systemctl", "try-reload-or-restart", unit], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpushareError(f"systemctl try-reload-or-restart {unit}: {error}; it is tried again at the next call") from None
    if done.returncode:
        words = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise GpushareError(
            f"the certificates are in place, but systemctl try-reload-or-restart {unit} says: {words}; "
            f"see journalctl -u {unit}. It is tried again at the next call"
        )


def main(argv: Sequence[str] | None = None, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> int:
    """The command; its exit status."""
    options = _parser().parse_args(argv)
    folder = Folder(options.dir, _purpose(options))
    time = now()
    try:
        if options.command == "status":
            print(json.dumps({"certificates": folder.status(time)}))
            return 0
        if options.command == "keep":
            stop = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
            keep(folder, now, options.copy_to, stop)
            return 0
        changed = folder.due(time).names if options.command == "plan" else ensure(folder, time, options.reload, try_reload)
        if options.command == "ensure" and options.copy_to:
            copy(folder, options.copy_to)
    except OSError as error:
        print(
            f"{NAME}: {error.filename or options.dir}: {error.strerror}; expected a folder that root can read and write: "
            "run as root, and check the path and the disk",
            file=sys.stderr,
        )
        return 1
    except GpushareError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    certificates = [{"path": state["path"], "not_after": state["not_after"]} for state in folder.status(time)]
    print(json.dumps({"changed": changed, "certificates": certificates}))
    return 0


def _purpose(options: argparse.Namespace) -> Purpose:
    return dashboard(options.name) if options.server == "dashboard" else EXTENDER


def _name(text: str) -> str:
    """A host name or an address of a certificate."""
    if _NAME.fullmatch(text):
        return text.lower()
    try:
        return str(ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text[:80]!r}; expected a host name or an IP address, such as gpushare.example.org"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Certificates between kube-scheduler and the extender of this host, or of its dashboard, from a CA of this host.",
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, text in {
        "ensure": "make what is missing or broken, renew what has less than a third of its life left",
        "keep": "do so, and again every six hours until SIGTERM; for a container beside the extender",
        "plan": "report what ensure would change; change nothing",
        "status": "report what each certificate is and what is wrong with it",
    }.items():
        sub = commands.add_parser(command, help=text, description=text)
        sub.add_argument("--dir", type=Path, required=True, help="the folder of the certificates, such as /etc/gpushare/pki")
        sub.add_argument("--for", dest="server", choices=("extender", "dashboard"), default="extender", help="default: %(default)s")
        sub.add_argument(
            "--name",
            action="append",
            default=[],
            type=_name,
            help="host name or address of the dashboard beside localhost; may be repeated",
        )
        if command in ("ensure", "keep"):
            sub.add_argument(
                "--copy-to",
                type=Path,
                required=command == "keep",
                metavar="FOLDER",
                help="where the server reads its certificate, its key and the CA's certificate",
            )
        if command == "ensure":
            sub.add_argument("--reload", default="", metavar="UNIT", help="systemd unit to reload when its certificate or the CA is new")
    return parser


if __name__ == "__main__":
    sys.exit(main())
