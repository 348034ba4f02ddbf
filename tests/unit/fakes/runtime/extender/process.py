# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-extender in a process of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

import gpushare_runtime
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def start(directory: Path, api: FakeApi, port: int, more: Sequence[str] = (), **environment: str) -> Process:
    (directory / "kubeconfig").write_text(kubeconfig(api.url, token="t"))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpushare_runtime.extender.main", "--listen", f"127.0.0.1:{port}", *more,
        stderr=PIPE,
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(gpushare_runtime.__file__).parent.parent),
            "KUBECONFIG": str(directory / "kubeconfig"),
            **environment,
        },
    )  # fmt: skip
