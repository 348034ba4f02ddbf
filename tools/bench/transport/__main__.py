# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What HTTP/1.1, mutual TLS and HTTP/2 cost between kube-scheduler's client and the extender: `python -m bench.transport`.

The client is a Go program with kube-scheduler's transport settings, the server is the extender's own code in this
process, with a Binding that takes as long as asked. The kinds take turns, because the machine may be shared: what is
compared is CPU time and counts, not the clock. Needs PyPI for python-h2; prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import uvloop

from gpushare_lab.golang import go_command
from gpushare_lab.prepare import the_cache
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.protocol import EXTENDER_PREFIX
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.http_server import Endpoints, listen
from gpushare_runtime.extender.tls import Tls, TlsFiles
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.pki.folder import Folder

HERE: Final = Path(__file__).parent
H2: Final = "h2==4.4.1"
NODES: Final = 500
# (the scheduler's own time for a pod, the API server's for a Binding), both in ms. It takes some 3 ms for 500 nodes itself.
LOADS: Final = ((3, 10), (3, 50), (0, 10))
KINDS: Final = ("http1", "http1-mtls", "http1-mtls-tickets", "http2-mtls")

Close = Callable[[], Awaitable[None]]


class SlowBinder:
    """Binds as fast as the API server is said to."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def bind(self, args: object) -> None:
        await asyncio.sleep(self._seconds)


def endpoints(bind_seconds: float) -> Endpoints:
    """The extender's verbs on 500 nodes of eight free GPUs."""
    cluster = ClusterCache()
    gpus = tuple(Gpu(i, f"GPU-{i}", i, f"0000:0{i}:00.0", "Tesla T4", 16 * 1024, 16) for i in range(8))
    for name in names():
        cluster.ledger.set_inventory(name, Inventory(GIB, gpus))
    return Endpoints(cluster, Verbs(cluster.ledger, Binpack()), SlowBinder(bind_seconds), lambda: "")  # type: ignore[arg-type]


def names() -> list[str]:
    return [f"gpu-node-{n:04d}" for n in range(NODES)]


def body() -> bytes:
    """ExtenderArgs as kube-scheduler writes them, for a pod of six units and all nodes."""
    metadata = {"name": "p", "namespace": "default", "uid": "%UID%", "creationTimestamp": "2026-11-21T04:41:32Z", "labels": {"app": "demo"}}
    container = {
        "name": "main",
        "image": "registry.example/demo:1",
        "command": ["sleep", "infinity"],
        "env": [{"name": f"VARIABLE_{n}", "value": "some value"} for n in range(10)],
        "resources": {"limits": {"aliyun.com/gpu-mem": "6"}, "requests": {"aliyun.com/gpu-mem": "6"}},
        "volumeMounts": [{"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    spec = {"containers": [container], "schedulerName": "default-scheduler", "serviceAccountName": "default", "priority": 0}
    pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "qosClass": "BestEffort"}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names()}, separators=(",", ":")).encode()


async def serve(kind: str, pki: Path, verbs: Endpoints) -> tuple[str, Close]:
    """A server of that kind on a free port: its URL prefix, and how to end it."""
    if kind == "http1":
        context = None
    else:
        context = Tls(TlsFiles(pki / "extender.crt", pki / "extender.key", pki / "ca.crt")).context
        if kind == "http1-mtls-tickets":
            context.num_tickets = 2
    if kind == "http2-mtls":
        return await serve_http2(context, verbs)
    server = listen(verbs, "127.0.0.1", 0, context)
    return url(context, server.port), server.close


async def serve_http2(context: ssl.SSLContext | None, verbs: Endpoints) -> tuple[str, Close]:
    assert context is not None
    context.set_alpn_protocols(["h2"])
    protocol = importlib.import_module("bench.transport.http2").Http2
    server = await asyncio.get_running_loop().create_server(lambda: protocol(verbs), "127.0.0.1", 0, ssl=context)

    async def close() -> None:
        server.close()

    return url(context, server.sockets[0].getsockname()[1]), close


def url(context: ssl.SSLContext | None, port: int) -> str:
    return f"{'https' if context else 'http'}://127.0.0.1:{port}{EXTENDER_PREFIX}"


async def one(kind: str, pki: Path, client: list[str], bind_seconds: float) -> dict[str, Any]:
    """One run of the client against that kind; CPU in milliseconds for each pod."""
    prefix, close = await serve(kind, pki, endpoints(bind_seconds))
    before = cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    process = await asyncio.create_subprocess_exec(
        *client, "-url", prefix, "-pki", "" if kind == "http1" else str(pki / "scheduler"), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    after = cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    await close()
    if process.returncode:
        sys.exit(f"the client ended with {process.returncode} against {kind}")
    seen: dict[str, Any] = json.loads(output)
    expected = "HTTP/2.0" if kind == "http2-mtls" else "HTTP/1.1"
    if seen["errors"] or seen["protocol"] != expected:
        sys.exit(f"{kind}: {seen['errors']} calls failed, {seen['protocol']} was spoken; expected none, and {expected}")
    pods = seen["pods"]
    return {
        "server_cpu_ms": 1000 * (after[0] - before[0]) / pods,
        "client_cpu_ms": 1000 * (after[1] - before[1]) / pods,
        "handshakes": seen["handshakes"] / pods,
        "connections": seen["connections"] / pods,
        "pods_per_second": pods / seen["seconds"],
        **{f"{verb}_ms_{part}": seen[f"{verb}_ms"][part] for verb in ("filter", "prioritize", "bind") for part in ("p50", "p99")},
    }


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def median(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}


def measure(pods: int, rounds: int) -> dict[str, Any]:
    """All kinds under all loads, in turns."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = Folder(scratch / "pki")
        with folder.locked():
            folder.write(folder.due(datetime.now(timezone.utc)))
        (scratch / "body").write_bytes(body())
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(scratch / "h2"), H2], check=True)
        sys.path.append(str(scratch / "h2"))
        subprocess.run([go_command(the_cache()), "build", "-o", str(scratch / "client"), "."], cwd=HERE / "client", check=True)
        loads = []
        for think, bind in LOADS:
            runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
            client = [str(scratch / "client"), "-body", str(scratch / "body"), "-pods", str(pods), "-think", f"{think}ms"]
            for _ in range(rounds):
                for kind in KINDS:
                    runs[kind].append(uvloop.run(one(kind, scratch / "pki", client, bind / 1000)))
            loads.append({"think_ms": think, "bind_ms": bind, **{kind: median(seen) for kind, seen in runs.items()}})
    return {"nodes": NODES, "pods": pods, "rounds": rounds, "cpus": os.cpu_count(), "loads": loads}


def table(result: dict[str, Any]) -> str:
    """The table of docs/project/benchmarks/transport.md."""
    lines = [
        "| scheduler's own time, Binding | over | extender's CPU per pod | client's CPU per pod | handshakes per pod | filter, median |",
        "|---|---|---|---|---|---|",
    ]
    for load in result["loads"]:
        for kind in KINDS:
            seen = load[kind]
            lines.append(
                f"| {load['think_ms']} ms, {load['bind_ms']} ms | {kind} | {seen['server_cpu_ms']:.2f} ms | "
                f"{seen['client_cpu_ms']:.2f} ms | {seen['handshakes']:.3f} | {seen['filter_ms_p50']:.2f} ms |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.transport", description=__doc__)
    parser.add_argument("--pods", type=int, default=1000, help="in each run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    result = measure(given.pods, given.rounds)
    text = json.dumps(result, indent=1)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(f"{text}\n")
    print(text)
    print(table(result), file=sys.stderr)


if __name__ == "__main__":
    main()
