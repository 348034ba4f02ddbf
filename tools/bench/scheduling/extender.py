# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender as it is installed: over mutual TLS, with certificates of its own, beside one scheduler; and one that does nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, cast

from bench.scheduling import idle
from bench.scheduling.control_plane import ControlPlane, Process, free_port
from gpushare_lab.cache import Cache
from gpushare_lab.process import run, run_logged
from gpushare_runtime.core.protocol import EXTENDER_PREFIX, RESOURCE_GPUS, RESOURCE_MEMORY

_READY = "answering the scheduler"
_BINDS = "the pods are as the API server has them now"
_ENTRY: Final[dict[str, Any]] = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "bindVerb": "bind",
    "weight": 10,
    "httpTimeout": "1s",
    "nodeCacheCapable": True,
    "managedResources": [{"name": RESOURCE_MEMORY}, {"name": RESOURCE_GPUS}],
}
_SYSTEM_PYTHON: Final = "/usr/bin/python3"
_REQUIREMENTS: Final = Path(__file__).parents[3] / "files/gpushare_runtime/requirements.txt"


def installed_python(cache: Cache) -> Path:
    """The distribution's Python with the runtime's requirements, as the installer makes it: one that was built by hand may be slower."""

    def build(folder: Path) -> None:
        log = cache.log("bench-python")
        run_logged(
            "making a virtual environment of the distribution's Python", [_SYSTEM_PYTHON, "-m", "venv", "--without-pip", folder], log
        )
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install"]
        run_logged("installing what the runtime requires", [*pip, "--require-hashes", "-r", _REQUIREMENTS], log)

    version = run([_SYSTEM_PYTHON, "-c", "import platform; print(platform.python_version())"]).stdout.strip()
    return cache.entry("bench-python", version, {"requirements": _REQUIREMENTS.read_bytes()}, build) / "bin/python"


def make_certificates(pki: Path) -> None:
    """Of the extender and of its scheduler, unless they are there."""
    run([sys.executable, "-m", "gpushare_runtime.pki.main", "ensure", "--dir", pki])


def _of_tls(pki: Path) -> dict[str, Any]:
    """The scheduler's part of mutual TLS."""
    scheduler = pki / "scheduler"
    files = {"caFile": scheduler / "ca.crt", "certFile": scheduler / "tls.crt", "keyFile": scheduler / "tls.key"}
    return {"enableHTTPS": True, "tlsConfig": {name: str(file) for name, file in files.items()}}


class Extender:
    """The process, and its entry in the scheduler's configuration, as the installer makes them. more: further options."""

    def __init__(self, plane: ControlPlane, *more: str, python: str | Path = sys.executable) -> None:
        self._port, metrics, pki = free_port(), free_port(), plane.folder / "pki"
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        make_certificates(pki)
        (plane.folder / "extender.log").unlink(missing_ok=True)
        tls: list[str | Path] = ["--tls-cert", pki / "extender.crt", "--tls-key", pki / "extender.key", "--client-ca", pki / "ca.crt"]
        module: list[str | Path] = [python, "-m", "gpushare_runtime.extender.main", "--kubeconfig", plane.kubeconfig]
        where = ["--listen", f"127.0.0.1:{self._port}", "--metrics-listen", f"127.0.0.1:{metrics}"]
        self._started = time.monotonic()
        # The scheduler of the benchmark competes for no lease.
        self.process = Process("extender", [*module, *where, "--lease", "none", *tls, *more], plane.folder)
        self.entry = {**_ENTRY, "urlPrefix": f"https://127.0.0.1:{self._port}{EXTENDER_PREFIX}", **_of_tls(pki)}

    async def ready(self, within: float = 600.0) -> float:
        """Seconds from the start until it answers the scheduler. SystemExit when it does not."""
        return await _until(self.process, _READY, self._started, within)

    async def binds(self, within: float = 600.0) -> float:
        """As `ready`, until it also binds: a new extender waits for what one before it may have sent."""
        return await _until(self.process, _BINDS, self._started, within)

    def health(self) -> dict[str, Any]:
        """What it says of itself."""
        url = f"https://127.0.0.1:{self._port}/healthz"
        with urllib.request.urlopen(url, context=ssl._create_unverified_context(), timeout=30) as reply:
            return cast(dict[str, Any], json.load(reply))


class Idle:
    """The program of `idle.py`, and its entry in the scheduler's configuration. tls: over the same mutual TLS as ours."""

    def __init__(self, plane: ControlPlane, python: str | Path, *, tls: bool = False) -> None:
        port, pki = free_port(), plane.folder / "pki"
        (plane.folder / "idle.log").unlink(missing_ok=True)
        module: list[str | Path] = [python, "-m", "bench.scheduling.idle", "--kubeconfig", plane.kubeconfig, "--port", str(port)]
        if tls:
            make_certificates(pki)
            module += ["--pki", pki]
        self._started = time.monotonic()
        self.process = Process("idle", module, plane.folder)
        self.entry = {
            **_ENTRY,
            "urlPrefix": f"http{'s' if tls else ''}://127.0.0.1:{port}{EXTENDER_PREFIX}",
            **(_of_tls(pki) if tls else {}),
        }

    async def ready(self, within: float = 60.0) -> float:
        """As of `Extender`."""
        return await _until(self.process, idle.READY, self._started, within)

    async def binds(self) -> float:
        """As of `Extender`. It waits for nothing."""
        return await self.ready()


async def _until(process: Process, words: str, started: float, within: float) -> float:
    """Seconds until the words are in its log. SystemExit when they are not in time."""
    while words not in process.log.read_text(errors="replace"):
        seconds = time.monotonic() - started
        if process.ended() or seconds > within:
            sys.exit(process.ended() or f"{process.name} was not ready after {within:.0f} s")
        await asyncio.sleep(0.05)
    return time.monotonic() - started
