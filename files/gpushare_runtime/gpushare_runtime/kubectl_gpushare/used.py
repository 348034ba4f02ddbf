# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The use that pods make of GPUs, from a Prometheus that scrapes the device plugins, or as their nodes publish it.

The Kubernetes API has it only roughly, and no more than once a minute: it changes all the time, and each change of an annotation is a write
to etcd that all watches get. A node's own metrics page needs a token that a tenant should not have, and the API server's way to it
(nodes/proxy) is a right over everything on the node.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.overuse import STARTS_NEVER
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.use_report import PodUse, UseReport
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_NODE, Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import InputError, PrometheusError
from gpushare_runtime.kubectl_gpushare.right_size import Peaks
from gpushare_runtime.kubectl_gpushare.views import closed

_SECONDS: Final = 15.0
_MOST_BYTES: Final = 256 * 1024**2
_MOST_SIZE: Final = 2**63
_MIB: Final = 1024 * 1024
_POD: Final = "gpushare_device_plugin_pod_memory_used_bytes"
_GPU: Final = "gpushare_device_plugin_gpu_memory_used_bytes"
_BUSY_POD: Final = "100 * gpushare_device_plugin_pod_sm_utilization_ratio"
_BUSY_GPU: Final = "100 * gpushare_device_plugin_gpu_sm_utilization_ratio"
_IDLE: Final = "gpushare_device_plugin_pod_idle_since_timestamp_seconds"
_OF_PODS: Final = (_POD, _BUSY_POD, _IDLE)
PEAKS_DAYS: Final = 7
_UNITS: Final = "gpushare_device_plugin_pod_units"
_STEP: Final = 600
"""Seconds between the times at which a week is looked at."""
NOBODY_KNOWS: Final = (
    "no node publishes the use of its GPUs (gpushare_publish_use), and no Prometheus is known. Name it by --prometheus URL, "
    "by the variable GPUSHARE_PROMETHEUS, or for everybody by gpushare_prometheus"
)
CONFIG_MAP: Final = path("api/v1", "namespaces", protocol.PUBLIC_NAMESPACE, "configmaps", protocol.INFO)
_EXPECTED: Final = "expected the URL of Prometheus itself, such as http://prometheus.monitoring:9090"


@dataclass
class _FilledUse:
    """As `Used`."""

    by_pod: dict[str, int] = field(default_factory=dict)
    by_gpu: dict[str, int] = field(default_factory=dict)
    busy_pods: dict[str, int] = field(default_factory=dict)
    busy_gpus: dict[str, int] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)


async def find_address(client: KubeClient) -> str:
    """Prometheus, as the installer's ConfigMap has it; "" without one that may be read."""
    try:
        found = await client.get(CONFIG_MAP)
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return ""
    return str((found.get("data") or {}).get("prometheus") or "")


def instead_of(error: PrometheusError, cluster: Cluster, by_installer: bool) -> str:
    """A warning that what the nodes publish is shown. The error, raised, where they publish nothing, or the caller has named Prometheus.

    by_installer: whether the installer has set its address, so that the caller has not asked for it.
    """
    if not (by_installer and cluster.knows_nodes and cluster.uses):
        raise error
    return f"warning: {error}. What the nodes publish is shown instead"


class PublishedUse:
    """The use that nodes publish, each of its own pods and GPUs, node by node. The word of a node before its device plugin or itself went
    away is old."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._now = cluster.now()
        self._used = _FilledUse()

    def add(self, name: str) -> None:
        """A node without a word adds nothing, nor does one that has gone."""
        node, used = self._cluster.ledger.nodes.get(name), self._used
        if node is None:
            return
        if (report := _report_of(self._cluster, node)) is not None and node.inventory:
            _add(used, node, node.inventory, report)
        asked = node.record.evictions
        if asked.in_force(self._now):
            used.by_pod.update({request.uid: request.used for request in asked.requests if request.reason != STARTS_NEVER})

    @property
    def used(self) -> Used:
        """Of the nodes that were added."""
        used = self._used
        return Used(used.by_pod, used.by_gpu, used.busy_pods, used.busy_gpus, used.idle)


def published(cluster: Cluster) -> Used:
    """As all nodes say."""
    found = PublishedUse(cluster)
    for name in sorted(cluster.ledger.nodes):
        found.add(name)
    return found.used


def _report_of(cluster: Cluster, node: NodeLedger) -> UseReport | None:
    """None also where the node's device plugin, or the node itself, is away. Of a node with slices, only the report's age shows it."""
    report = cluster.uses.get(node.name)
    there = node.inventory and closed(node, cluster.infos.get(node.name, UNKNOWN_NODE)) in ("", "S")
    if not there or (report and node.name in cluster.claims.inventories and report.is_old(cluster.now())):
        return None
    return report


def check_url(url: str) -> str:
    """InputError if no Prometheus can be there."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/")
    except ValueError:
        pass
    raise InputError(f"--prometheus: found {quote(url)}; {_EXPECTED}")


async def read_used(url: str, token_file: str = "") -> Used:
    """The memory that is used now. token_file: has a bearer token, "" for none. InputError if Prometheus does not answer as it should."""
    headers = {"Authorization": f"Bearer {_token(token_file)}"} if token_file else {}
    where = check_url(url)
    asked = (_POD, _GPU, _BUSY_POD, _BUSY_GPU, _IDLE)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS), headers=headers, trust_env=True) as session:
        pods, gpus, busy_pods, busy_gpus, idle = await asyncio.gather(*(_query(session, where, metric) for metric in asked))
    sizes, loads = Counter[str](), Counter[str]()
    for sums, samples in ((sizes, pods), (loads, busy_pods)):
        for labels, value in samples:
            sums[str(labels.get("uid", ""))] += value
    by_gpu, by_load = ({str(labels.get("uuid", "")): value for labels, value in samples} for samples in (gpus, busy_gpus))
    # A pod is idle if it is so on each of the GPUs whose load is known.
    known = Counter(str(labels.get("uid", "")) for labels, _ in busy_pods)
    rests: dict[str, list[int]] = {}
    for labels, since in idle:
        rests.setdefault(str(labels.get("uid", "")), []).append(since)
    return Used(
        {key: -(-size // _MIB) for key, size in sizes.items() if key},
        {key: -(-size // _MIB) for key, size in by_gpu.items() if key},
        {key: load for key, load in loads.items() if key},
        {key: load for key, load in by_load.items() if key},
        {uid: float(max(times)) for uid, times in rests.items() if uid and len(times) == known[uid]},
    )


def published_peaks(cluster: Cluster) -> Peaks:
    """As the nodes say, each about its own pods. InputError where none says anything."""
    if not cluster.uses:
        raise InputError(NOBODY_KNOWS)
    peaks, seconds, now = dict[str, int](), dict[str, float](), cluster.now()
    for node in cluster.nodes:
        report = _report_of(cluster, node)
        if report is None:
            continue
        uses: dict[str, dict[int, PodUse]] = {}
        for (uid, index), use in report.pods.items():
            uses.setdefault(uid, {})[index] = use
        for pod in node.pods:
            here = uses.get(pod.uid, {})
            sizes = [use.peak for use in here.values() if use.peak is not None]
            if sizes and len(sizes) == len(here) and _is_whole(pod, here):
                peaks[pod.uid] = max(sizes)
                seconds[pod.uid] = min(report.seconds_of(use, now) for use in here.values())
    return Peaks("the most that a pod has used on one GPU, as the nodes publish it by gpushare/use", peaks, seconds)


def _is_whole(pod: AllocatedPod, uses: Mapping[int, PodUse]) -> bool:
    """Whether something is said of each of its GPUs, by index: it may use more, or be busy, on another."""
    return pod.allocation is None or pod.allocation.by_gpu.keys() <= uses.keys()


def peaks_query(namespace: str) -> str:
    """The PromQL for the bytes of each pod. namespace: "" for all."""
    chosen = f"{{namespace={orjson.dumps(namespace).decode()}}}" if namespace else ""
    week, now = f"{chosen}[{PEAKS_DAYS}d]", f"{chosen}[{_STEP}s]"
    # A GPU that answers, and the pod's use of it has no series: the driver does not report it, whatever was known before.
    unsized = (
        f"max_over_time({_UNITS}{now}) and on (job, instance, uuid) max_over_time({_GPU}[{_STEP}s]) "
        f"unless on (uid, uuid) max_over_time({_POD}{now})"
    )
    unknown = f"max_over_time({_UNITS}{week}) unless on (uid, uuid) max_over_time({_POD}{week}) or ({unsized})"
    return f"max by (uid) (max_over_time({_POD}{week})) unless on (uid) ({unknown})"


def seconds_query(namespace: str) -> str:
    """The PromQL for how long the use of each pod has been measured: at most that, of its GPUs."""
    chosen = f"{{namespace={orjson.dumps(namespace).decode()}}}" if namespace else ""
    counted = f"count_over_time((max by (uid, uuid) ({_POD}{chosen}))[{PEAKS_DAYS}d:{_STEP}s])"
    return f"{_STEP} * (min by (uid) ({counted}) - 1)"


async def read_peaks(url: str, token_file: str = "", namespace: str = "") -> Peaks:
    """Of the last days. namespace: "" for all. InputError if Prometheus does not answer as it should."""
    headers = {"Authorization": f"Bearer {_token(token_file)}"} if token_file else {}
    where = check_url(url)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS), headers=headers, trust_env=True) as session:
        asked = (peaks_query(namespace), seconds_query(namespace))
        sizes, times = await asyncio.gather(*(_ask(session, where, query) for query in asked))
    peaks = {str(labels.get("uid", "")): -(-size // _MIB) for labels, size in sizes}
    seconds = {str(labels.get("uid", "")): float(lasted) for labels, lasted in times}
    source = f"the most that a pod has used on one GPU in the last {PEAKS_DAYS} days, from Prometheus at {where[:200]}"
    return Peaks(source, peaks, seconds)


def _add(used: _FilledUse, node: NodeLedger, inventory: Inventory, report: UseReport) -> None:
    by_index = inventory.by_index
    for index, gpu in report.gpus.items():
        if index in by_index:
            used.by_gpu[by_index[index].uuid] = gpu.mib
            if gpu.sm is not None:
                used.busy_gpus[by_index[index].uuid] = gpu.sm
    pods = {pod.uid: pod for pod in node.pods}
    by_pod: dict[str, dict[int, PodUse]] = {}
    for (uid, index), use in report.pods.items():
        if (uid in pods or uid in node.record.held.by_uid) and index in by_index:
            by_pod.setdefault(uid, {})[index] = use
    for uid, by_gpu in by_pod.items():
        uses, is_whole = by_gpu.values(), uid not in pods or _is_whole(pods[uid], by_gpu)
        sizes = [use.mib for use in uses if use.mib is not None]
        if is_whole and len(sizes) == len(uses):
            used.by_pod[uid] = sum(sizes)
        if loads := [use.sm for use in uses if use.sm is not None]:
            used.busy_pods[uid] = sum(loads)
        times = [use.idle for use in uses if use.idle is not None]
        if is_whole and len(times) == len(uses):
            used.idle[uid] = float(max(times))


def _token(file: str) -> str:
    try:
        text = Path(file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prometheus-token-file: {file[:80]} cannot be read: {error}") from None
    if not text or not text.isprintable():
        raise InputError(f"--prometheus-token-file: found no token in {file[:80]}; expected one line with a bearer token")
    return text


async def _query(session: aiohttp.ClientSession, url: str, metric: str) -> list[tuple[Mapping[str, Any], int]]:
    # A pod and GPU that two jobs scrape is counted once.
    labels = "uid, uuid" if metric in _OF_PODS else "uuid"
    return await _ask(session, url, f"max by ({labels}) ({metric})")


async def _ask(session: aiohttp.ClientSession, url: str, expression: str) -> list[tuple[Mapping[str, Any], int]]:
    """Labels and value of each series now."""
    try:
        async with session.get(f"{url}/api/v1/query", params={"query": expression}, allow_redirects=False) as response:
            data = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                data += piece
                if len(data) > _MOST_BYTES:
                    raise PrometheusError(f"{url}: found an answer of more than {_MOST_BYTES} bytes; {_EXPECTED}")
            status = response.status
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise PrometheusError(
            f"Prometheus at {url[:200]} does not answer: {quote(str(error) or type(error).__name__)}; {_EXPECTED}"
        ) from None
    return list(_samples(bytes(data), status, url))


def _samples(data: bytes, status: int, url: str) -> Iterator[tuple[Mapping[str, Any], int]]:
    try:
        answer = orjson.loads(data)
        if answer["status"] != "success":
            raise PrometheusError(f"Prometheus at {url[:200]} rejected the query: {quote(answer.get('error'))}")
        found = [(dict(sample["metric"]), float(sample["value"][1])) for sample in answer["data"]["result"]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise PrometheusError(f"{url[:200]}: found status {status} and {quote(data[:80].decode(errors='replace'))}; {_EXPECTED}") from None
    for labels, size in found:
        if math.isfinite(size) and 0 <= size < _MOST_SIZE:
            yield labels, int(size)
