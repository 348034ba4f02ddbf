# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Time of `kubectl gpushare` on the largest cluster: `python -m bench.kubectl [--against RUNTIME] [--json FILE]`.

It reads 5000 nodes and 50,000 pods from an API server that sends prepared pages, as a real one does, and from a file. --against: the
folder of another release's runtime, which is measured in turns with this one: on a busy machine only the ratio means something.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

from tree import REPOSITORY
from unit.fakes.runtime.kube.fake_api import kubeconfig
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.fakes.runtime.pods import inventory

RUNTIME: Final = REPOSITORY / "files/gpushare_runtime"
NODES: Final = 5000
PODS_PER_NODE: Final = 10
TARGET_SECONDS: Final = 3.0
VIEWS: Final = (("nodes",), ("pods", "-A"))
_PAGE: Final = 500
_ROUNDS: Final = 3


def objects() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(nodes, pods) as kubectl writes them, with labels, images and statuses: 100 MB."""
    gpus = inventory(*[80] * 8)
    labels = {f"label-{number}": "x" * 20 for number in range(10)}
    nodes: list[dict[str, Any]] = []
    pods: list[dict[str, Any]] = []
    for at in range(NODES):
        name = f"node-{at:05d}"
        one = node(name, f"10.0.{at // 250}.{at % 250}", gpus=gpus) | {"kind": "Node"}
        one["metadata"]["labels"] = labels
        one["status"]["images"] = [{"names": [f"registry.example/image@sha256:{'0' * 64}"], "sizeBytes": 12345}] * 20
        nodes.append(one)
        for number in range(PODS_PER_NODE):
            gpu, units = number % 8, 8 + number
            said = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(gpu): units}})}
            it = pod(f"pod-{at}-{number}", name, annotations=said, mem=units, namespace=f"team-{number}") | {"kind": "Pod"}
            it["metadata"]["labels"] = labels
            it["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}, "image": "image", "imageID": "x" * 80}]
            it["spec"]["volumes"] = [{"name": "a", "projected": {"sources": [{"a": "b" * 200}] * 3}}]
            pods.append(it)
    return nodes, pods


def managed(kind: str) -> dict[str, Any]:
    """What only the API server sends, and kubectl leaves out of its output: who has written which field."""
    inner: dict[str, Any] = {f"f:{name}": {} for name in ("name", "image", "imagePullPolicy", "resources", "lastProbeTime", "volumeMounts")}
    spec: dict[str, Any] = {f"f:{name}": {} for name in ("affinity", "dnsPolicy", "enableServiceLinks", "nodeName", "schedulerName")}
    conditions = {f'k:{{"type":"{name}"}}': inner for name in ("Ready", "Initialized", "ContainersReady")}
    written = {
        "f:metadata": {"f:labels": {f"f:label-{number}": {} for number in range(10)}, "f:annotations": {".": {}}},
        "f:spec": {**spec, "f:containers": {'k:{"name":"main"}': inner}},
        "f:status": {"f:conditions": conditions},
    }
    managers = ("kube-controller-manager", "kubelet") if kind == "Pod" else ("kubelet", "gpushare-device-plugin", "kubectl")
    return {"managedFields": [{"manager": one, "operation": "Update", "apiVersion": "v1", "time": "2026-11-24T00:00:00Z",
                               "fieldsType": "FieldsV1", "fieldsV1": written} for one in managers]}  # fmt: skip


def write(path: Path) -> Path:
    """The cluster as one file of kubectl."""
    nodes, pods = objects()
    path.write_bytes(orjson.dumps({"kind": "List", "items": [*nodes, *pods]}))
    return path


@contextmanager
def api_server() -> Iterator[str]:
    """The URL of a server with the lists of the cluster, in pages of 500."""
    pages: dict[tuple[str, int], bytes] = {}
    for path, items in zip(("/api/v1/nodes", "/api/v1/pods"), objects(), strict=True):
        for one in items:
            one["metadata"] |= managed(one["kind"])
        for at in range(0, len(items), _PAGE):
            more = {"continue": str(at + _PAGE)} if at + _PAGE < len(items) else {}
            pages[path, at] = orjson.dumps({"metadata": {"resourceVersion": "1", **more}, "items": items[at : at + _PAGE]})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = pages[url.path, int(parse_qs(url.query).get("continue", ["0"])[0])]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Took:
    """cpu, wall: seconds."""

    cpu: float
    wall: float


def run(argv: Sequence[str], source: Sequence[str], runtime: Path = RUNTIME) -> tuple[Took, str]:
    """(time, output). AssertionError with its errors if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", *argv, *source]
    environment = {**os.environ, "PYTHONPATH": str(runtime)}
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return Took(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall), done.stdout


def sources(folder: Path, server: str) -> dict[str, list[str]]:
    """The options for each source of the cluster."""
    (folder / "kubeconfig").write_text(kubeconfig(server, token="t"))
    return {"API server": ["--kubeconfig", str(folder / "kubeconfig")], "file": ["--from-file", str(write(folder / "cluster.json"))]}


def least(of: Sequence[Took]) -> dict[str, float]:
    """The fastest round, which others on the machine disturbed least."""
    return {"cpu_seconds": round(min(took.cpu for took in of), 2), "wall_seconds": round(min(took.wall for took in of), 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="files/gpushare_runtime of another release")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, api_server() as server:
        for source, given in sources(Path(name), server).items():
            for view in VIEWS:
                own: list[Took] = []
                other: list[Took] = []
                for _ in range(_ROUNDS):
                    took, text = run(view, given)
                    own.append(took)
                    if options.against:
                        took, known = run(view, given, options.against)
                        other.append(took)
                        assert known == text, "the two print different tables"
                row: dict[str, Any] = {"source": source, "view": " ".join(view), **least(own)}
                if other:
                    ratio = statistics.median(a.cpu / b.cpu for a, b in zip(own, other, strict=True))
                    row |= {f"before_{name}": value for name, value in least(other).items()} | {"ratio": round(ratio, 2)}
                rows.append(row)
                print(row)
    measured = {
        "date": time.strftime("%Y-%m-%d"), "machine": f"{os.cpu_count()} CPUs, Python {platform.python_version()}",
        "nodes": NODES, "pods": NODES * PODS_PER_NODE, "rounds": _ROUNDS, "load_average": round(os.getloadavg()[0], 1),
        "target_cpu_seconds": TARGET_SECONDS, "results": rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    return 0 if all(row["cpu_seconds"] <= TARGET_SECONDS for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
