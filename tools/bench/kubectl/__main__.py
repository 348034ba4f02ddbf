# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Time and memory of `kubectl gpushare` on the largest cluster: `python -m bench.kubectl [--against RUNTIME] [--json FILE]`.

It reads 5000 nodes, which publish what their pods use, and 50,000 pods from an API server that sends prepared pages, as a real one does,
and from a file. The same without that annotation takes turns with it. --against: the folder of another release's runtime, which takes
turns, too: on a busy machine only the ratio means something.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.protocol import ANNOTATION_USE
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from tree import REPOSITORY
from unit.fakes.runtime.kube.fake_api import kubeconfig
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.fakes.runtime.pods import gpu

RUNTIME: Final = REPOSITORY / "files/gpushare_runtime"
NODES: Final = 5000
PODS_PER_NODE: Final = 10
GPUS: Final = 8
#: Of those of a node, pods that use nothing.
IDLE_PODS: Final = 3
TARGET_SECONDS: Final = 3.0
TARGET_MIB: Final = 400.0
#: Of the annotation of one node.
TARGET_BYTES: Final = 1024
VIEWS: Final = (("nodes",), ("pods", "-A"), ("top", "-A"), ("idle", "-A"))
API_SERVER, WITHOUT_USE, FILE = "API server", "API server, without the use", "file"
_PAGE: Final = 500
_MOST_SECONDS: Final = 600.0
_LABELS: Final = {f"label-{number}": "x" * 20 for number in range(10)}


def use_of(at: int, now: float, sm: int = 40) -> str:
    """What the node of this number publishes. sm: percent, of the pods that are busy."""
    pods = {}
    for number in range(PODS_PER_NODE):
        idle = int(now) - 3600 * (number + 2) - 1800 if number < IDLE_PODS else None
        pods[uid_of(at, number), number % GPUS] = PodUse(5000 + number, 0 if idle else sm, idle, 6144, 100_000)
    return UseReport(int(now), {index: GpuUse(10_000 + index, sm) for index in range(GPUS)}, pods).to_json()


def uid_of(at: int, number: int) -> str:
    return f"00000000-0000-4000-8000-{at * PODS_PER_NODE + number:012x}"


def node_of(at: int, use: str = "") -> dict[str, Any]:
    """The node of this number. use: what it publishes, "" for nothing."""
    gpus = Inventory(GIB, tuple(gpu(index, 80, uuid=f"GPU-{at:08x}-0000-4000-8000-{index:012x}") for index in range(GPUS)))
    one = node(f"node-{at:05d}", f"10.0.{at // 250}.{at % 250}", gpus=gpus) | {"kind": "Node"}
    one["metadata"]["labels"] = _LABELS
    one["metadata"]["annotations"] |= {ANNOTATION_USE: use} if use else {}
    one["status"]["images"] = [{"names": [f"registry.example/image@sha256:{'0' * 64}"], "sizeBytes": 12345}] * 20
    return one


def objects(*, use: bool = True) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(nodes, pods) as kubectl writes them, with labels, images and statuses: 100 MB. use: whether nodes publish that of their GPUs."""
    now = time.time()
    nodes: list[dict[str, Any]] = []
    pods: list[dict[str, Any]] = []
    for at in range(NODES):
        nodes.append(node_of(at, use_of(at, now) if use else ""))
        name = nodes[-1]["metadata"]["name"]
        for number in range(PODS_PER_NODE):
            units = 8 + number
            said = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(number % GPUS): units}})}
            it = pod(f"pod-{at}-{number}", name, annotations=said, mem=units, namespace=f"team-{number}") | {"kind": "Pod"}
            it["metadata"] |= {"labels": {**_LABELS, "pod-template-hash": "5d4f6b7c8d"}, "uid": uid_of(at, number)}
            it["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-5d4f6b7c8d", "controller": True}]
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
def api_server(*, use: bool = True) -> Iterator[str]:
    """The URL of a server with the lists of the cluster, in pages of 500. use: as of `objects`."""
    pages: dict[tuple[str, int], bytes] = {}
    for path, items in zip(("/api/v1/nodes", "/api/v1/pods"), objects(use=use), strict=True):
        for one in items:
            one["metadata"] |= managed(one["kind"])
        for at in range(0, len(items), _PAGE):
            more = {"continue": str(at + _PAGE)} if at + _PAGE < len(items) else {}
            pages[path, at] = orjson.dumps({"metadata": {"resourceVersion": "1", **more}, "items": items[at : at + _PAGE]})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = pages.get((url.path, int(parse_qs(url.query).get("continue", ["0"])[0])), b"")
            # Of the rest, such as the address of a Prometheus, it has nothing.
            self.send_response(200 if body else 404)
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
    """cpu, wall: seconds. mib: the most memory that it had resident."""

    cpu: float
    wall: float
    mib: float


#: Runs a command, and writes what it took into a file: seconds of CPU, and KiB. A process counts the memory of the one that has started it
#: as its own, and that of this one is more than a gigabyte.
_MEASURED: Final = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(f"{used.ru_utime + used.ru_stime} {used.ru_maxrss}")
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(argv: Sequence[str], source: Sequence[str], runtime: Path = RUNTIME) -> tuple[Took, str]:
    """(what it took, output). AssertionError with its errors if it fails."""
    command = [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", *argv, *source]
    environment = {**os.environ, "PYTHONPATH": str(runtime)}
    with tempfile.NamedTemporaryFile("r") as usage:
        began = time.monotonic()
        measured = [sys.executable, "-c", _MEASURED, usage.name, *command]
        done = subprocess.run(measured, capture_output=True, text=True, env=environment, timeout=_MOST_SECONDS, check=False)
        wall = time.monotonic() - began
        assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
        cpu, kib = map(float, usage.read().split())
    return Took(cpu, wall, kib / 1024), done.stdout


def sources(folder: Path, server: str) -> dict[str, list[str]]:
    """The options for each source of the cluster."""
    return {API_SERVER: from_server(folder, server), FILE: ["--from-file", str(write(folder / "cluster.json"))]}


def from_server(folder: Path, server: str) -> list[str]:
    path = folder / f"kubeconfig-{urlsplit(server).port}"
    path.write_text(kubeconfig(server, token="t"))
    return ["--kubeconfig", str(path)]


def least(of: Sequence[Took]) -> dict[str, float]:
    """The fastest round, which others on the machine disturbed least."""
    return {
        "cpu_seconds": round(min(took.cpu for took in of), 2),
        "wall_seconds": round(min(took.wall for took in of), 2),
        "resident_mib": round(max(took.mib for took in of)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="files/gpushare_runtime of another release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        servers = {named: stack.enter_context(api_server(use=named == API_SERVER)) for named in (API_SERVER, WITHOUT_USE)}
        given = {**sources(Path(name), servers[API_SERVER]), WITHOUT_USE: from_server(Path(name), servers[WITHOUT_USE])}
        for view in VIEWS:
            # Without it nobody is known to be idle.
            turns = {named: there for named, there in given.items() if named != WITHOUT_USE or view[0] not in ("top", "idle")}
            own: dict[str, list[Took]] = {named: [] for named in turns}
            other: dict[str, list[Took]] = {named: [] for named in turns}
            for _ in range(options.rounds):
                for named, there in turns.items():
                    took, text = run(view, there)
                    own[named].append(took)
                    if options.against:
                        took, known = run(view, there, options.against)
                        other[named].append(took)
                        assert known == text, "the two print different tables"
            for named, found in own.items():
                row: dict[str, Any] = {"source": named, "view": " ".join(view), **least(found)}
                if before := other[named]:
                    ratio = statistics.median(a.cpu / b.cpu for a, b in zip(found, before, strict=True))
                    row |= {f"before_{key}": value for key, value in least(before).items()} | {"ratio": round(ratio, 2)}
                rows.append(row)
                print(row)
    one = len(use_of(NODES - 1, time.time()))
    measured = {
        "date": time.strftime("%Y-%m-%d"), "machine": f"{os.cpu_count()} CPUs, Python {platform.python_version()}",
        "nodes": NODES, "pods": NODES * PODS_PER_NODE, "rounds": options.rounds, "load_average": round(os.getloadavg()[0], 1),
        "target_cpu_seconds": TARGET_SECONDS, "target_resident_mib": TARGET_MIB, "target_use_bytes": TARGET_BYTES,
        "use_bytes_of_a_node": one, "results": rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    missed = [row for row in rows if row["cpu_seconds"] > TARGET_SECONDS or row["resident_mib"] > TARGET_MIB]
    return 1 if missed or one > TARGET_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
