# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Memory that pods really use, from a Prometheus that scrapes the device plugins.

The Kubernetes API does not have it on purpose: it changes all the time, and each change of an annotation is a write to etcd that all
watches get. A node's own metrics page needs a token that a tenant should not have, and the API server's way to it (nodes/proxy) is a right
over everything on the node. The API has the use of those pods that their nodes want evicted.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.core.overuse import STARTS_NEVER
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import InputError

_SECONDS: Final = 15.0
_MOST_BYTES: Final = 256 * 1024**2
_MOST_SIZE: Final = 2**63
_MIB: Final = 1024 * 1024
_POD: Final = "gpushare_device_plugin_pod_memory_used_bytes"
_GPU: Final = "gpushare_device_plugin_gpu_memory_used_bytes"
CONFIG_MAP: Final = path("api/v1", "namespaces", protocol.PUBLIC_NAMESPACE, "configmaps", protocol.INFO)
_EXPECTED: Final = "expected the URL of Prometheus itself, such as http://prometheus.monitoring:9090"


async def find_address(client: KubeClient) -> str:
    """Prometheus, as the installer's ConfigMap has it; "" without one that may be read."""
    try:
        found = await client.get(CONFIG_MAP)
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return ""
    return str((found.get("data") or {}).get("prometheus") or "")


def published(cluster: Cluster) -> Used:
    """The use of those pods for whose excess a device plugin requests an eviction now: the only one that nodes publish."""
    now = cluster.now()
    found: dict[str, int] = {}
    for node in cluster.nodes:
        asked = node.record.evictions
        if asked.in_force(now):
            found.update({request.uid: request.used for request in asked.requests if request.reason != STARTS_NEVER})
    return Used(found)


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
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS), headers=headers, trust_env=True) as session:
        pods, gpus = await asyncio.gather(_query(session, where, _POD), _query(session, where, _GPU))
    by_pod: Counter[str] = Counter()
    for labels, size in pods:
        by_pod[str(labels.get("uid", ""))] += size
    by_gpu = {str(labels.get("uuid", "")): size for labels, size in gpus}
    return Used(*({key: -(-size // _MIB) for key, size in sizes.items() if key} for sizes in (by_pod, by_gpu)))


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
    labels = "uid, uuid" if metric == _POD else "uuid"
    try:
        async with session.get(f"{url}/api/v1/query", params={"query": f"max by ({labels}) ({metric})"}, allow_redirects=False) as response:
            data = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                data += piece
                if len(data) > _MOST_BYTES:
                    raise InputError(f"{url}: found an answer of more than {_MOST_BYTES} bytes; {_EXPECTED}")
            status = response.status
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise InputError(f"Prometheus at {url[:200]} does not answer: {quote(str(error) or type(error).__name__)}; {_EXPECTED}") from None
    return list(_samples(bytes(data), status, url))


def _samples(data: bytes, status: int, url: str) -> Iterator[tuple[Mapping[str, Any], int]]:
    try:
        answer = orjson.loads(data)
        if answer["status"] != "success":
            raise InputError(f"Prometheus at {url[:200]} rejected the query: {quote(answer.get('error'))}")
        found = [(dict(sample["metric"]), float(sample["value"][1])) for sample in answer["data"]["result"]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise InputError(f"{url[:200]}: found status {status} and {quote(data[:80].decode(errors='replace'))}; {_EXPECTED}") from None
    for labels, size in found:
        if math.isfinite(size) and 0 <= size < _MOST_SIZE:
            yield labels, int(size)
