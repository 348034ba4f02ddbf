# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads nodes and pods: of a cluster, as far as the reader may, or from files; as raw JSON, or into a `Cluster` page by page."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
import yaml

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import OBJECT_NAME, ReportError, as_text, quote
from gpushare_runtime.core.placement.gpu_sizes import GpuSizes
from gpushare_runtime.dra.slices import API as RESOURCE_API
from gpushare_runtime.dra.slices import DRIVER
from gpushare_runtime.kube.client import LOST, METADATA_LIST, UNREACHABLE, KubeClient, KubeError, path
from gpushare_runtime.kube.credentials import Credentials
from gpushare_runtime.kube.fields import NoListError, read_objects, read_page
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.errors import InputError

Objects = list[dict[str, Any]]
K = TypeVar("K")

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
SLICES: Final = path(RESOURCE_API, "resourceslices")
OF_OURS: Final = f"spec.driver={DRIVER}"
"""The field selector of our ResourceSlices."""
TIMEOUT_SECONDS: Final = 15.0
MOST_OBJECTS: Final = 1_000_000
"""Nodes and pods of one cluster; Kubernetes is built for 5000 and 150,000."""
MOST_FILE_BYTES: Final = 2 * 1024**3
MOST_MANIFEST_BYTES: Final = 16 * 1024**2
MOST_REPLICAS: Final = 10_000
_SIZES: Final = path("api/v1", "namespaces", protocol.PUBLIC_NAMESPACE, "configmaps", protocol.SIZES)
_EXTENDER: Final = "gpushare-extender"
_MOST_EVENTS: Final = 500
_MOST_MESSAGE: Final = 1024
# Of pods that can never run, from the extender.
_VERDICTS: Final = (protocol.EVENT_TOO_LARGE, protocol.EVENT_INVALID, protocol.EVENT_UNSUPPORTED)
_EXPIRED: Final = 410
_A_NAME: Final = re.compile(OBJECT_NAME)
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404


async def read_cluster(credentials: Credentials, names: Sequence[str]) -> tuple[Objects, Objects, Objects]:
    """(all nodes, the unfinished bound pods, our ResourceSlices with all ResourceClaims). KubeError if that fails.

    The pods are those of the node if `names` has one, else of all. Without such slices there are no claims.
    """
    bound = f"spec.nodeName={names[0]}" if len(names) == 1 else "spec.nodeName!="
    async with KubeClient(credentials, user_agent="kubectl-inspect-gpushare", timeout=TIMEOUT_SECONDS) as client:
        nodes, pods = await asyncio.gather(_list(client, NODES), _list(client, PODS, f"{protocol.UNFINISHED},{bound}"))
        return nodes, pods, await _slices_and_claims(client)


async def slices_of(client: KubeClient, node: str = "") -> Objects:
    """Our ResourceSlices, of one node or all; none where that API is not served, or the user may not list them."""
    try:
        return await _list(client, SLICES, f"{OF_OURS},spec.nodeName={node}" if node else OF_OURS)
    except KubeError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return []


async def _slices_and_claims(client: KubeClient) -> Objects:
    slices = await slices_of(client)
    # Items of a list have no kind.
    claims = await _list(client, claims_path("")) if slices else []
    return [*({**item, "kind": "ResourceSlice"} for item in slices), *({**item, "kind": "ResourceClaim"} for item in claims)]


async def _list(client: KubeClient, path: str, selector: str = "") -> Objects:
    """In pages, so that no answer becomes huge; in one piece if the pages expire before the last was read."""
    try:
        return [item async for page in client.list_pages(path, fieldSelector=selector) for item in page.get("items") or ()]
    except KubeError as error:
        if error.status != _EXPIRED:
            raise
    return (await client.get(path, fieldSelector=selector)).get("items") or []


async def pods_named(client: KubeClient, namespace: str, name: str) -> Objects:
    """The pods of this name, ended ones too; namespace: "" for all. A name that no pod can have has none."""
    found = await _list(client, pods_path(namespace), f"metadata.name={name}") if _A_NAME.fullmatch(name) else []
    return [raw for raw in found if raw["metadata"]["name"] == name]


def claims_path(namespace: str) -> str:
    """Where the ResourceClaims of a namespace are listed; of all for ""."""
    return path(RESOURCE_API, *(("namespaces", namespace) if namespace else ()), "resourceclaims")


def pods_path(namespace: str) -> str:
    """Where the pods of a namespace are listed; of all for ""."""
    return path("api/v1", "namespaces", namespace, "pods") if namespace else PODS


async def fill(client: KubeClient, cluster: Cluster, namespace: str, own: str) -> str:
    """Read nodes, and the pods of a namespace ("": all). The namespace that was read, which is `own` where others are forbidden.

    Without the right to list nodes, or all pods, the cluster is not complete, and says so among its warnings.
    """
    try:
        await _read_into(client, NODES, "", cluster.set_node, cluster.remove_node)
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        _without_nodes(cluster)
    try:
        await _read_into(client, pods_path(namespace), protocol.UNFINISHED, cluster.set_pod, cluster.remove_pod)
    except KubeError as error:
        if error.status != FORBIDDEN or namespace:
            raise
        namespace = own
        _without_others_pods(cluster, own)
        await _read_into(client, pods_path(own), protocol.UNFINISHED, cluster.set_pod, cluster.remove_pod)
    if namespace:
        cluster.complete = False
    await _read_claims(client, cluster, namespace)
    cluster.settle()
    if not cluster.knows_nodes:
        await _read_sizes(client, cluster)
        if cluster.sizes is None and cluster.waiting:
            await _read_verdicts(client, cluster, namespace or own)
    return namespace


async def _read_claims(client: KubeClient, cluster: Cluster, namespace: str) -> None:
    """The objects that the back end DRA has in the place of annotations. None where it is not in use, or the user may not read them.

    Kubernetes' role `view` reads claims, and not slices.
    """
    if not await _read_slices(client, cluster) and not cluster.claims.in_use:
        return
    try:
        await _read_into(client, claims_path(namespace), "", cluster.set_claim, cluster.remove_claim)
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        cluster.warnings.append("you may not list ResourceClaims, so it is not known which GPUs pods have")


async def _read_slices(client: KubeClient, cluster: Cluster) -> bool:
    """Whether there are any of ours."""
    try:
        await _read_into(client, SLICES, OF_OURS, cluster.set_slice, cluster.remove_slice)
    except KubeError as error:
        # The API server of a release without DRA has no such path.
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        if error.status == FORBIDDEN and cluster.knows_nodes and cluster.claims.in_use:
            cluster.knows_nodes = cluster.complete = False
            cluster.warnings.append("you may not list ResourceSlices, so the GPUs of nodes are not known")
    return bool(cluster.claims.slices)


async def find_scope(client: KubeClient, cluster: Cluster, own: str) -> str:
    """The namespace whose pods may be listed: "" for all, else `own`. Marks the cluster as `fill` does, and reads next to nothing."""
    try:
        await client.get(NODES, accept=METADATA_LIST, limit=1)
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        _without_nodes(cluster)
    namespace = ""
    try:
        await client.get(PODS, accept=METADATA_LIST, limit=1)
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        await client.get(pods_path(own), accept=METADATA_LIST, limit=1)
        _without_others_pods(cluster, own)
        namespace = own
    await _read_slices(client, cluster)
    if not cluster.knows_nodes:
        await _read_sizes(client, cluster)
    return namespace


async def may_follow_claims(client: KubeClient) -> bool:
    """Whether the API server has ResourceSlices and ResourceClaims, and gives the user all of both."""
    try:
        for where in (SLICES, claims_path("")):
            await client.get(where, accept=METADATA_LIST, limit=1)
    except KubeError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return False
    return True


def _without_nodes(cluster: Cluster) -> None:
    cluster.knows_nodes = cluster.complete = False
    cluster.warnings.append("you may not list nodes, so their GPUs are not known")


async def _read_sizes(client: KubeClient, cluster: Cluster) -> None:
    """The sizes of the GPUs, which the installation has made public; none of an older one."""
    try:
        found = await client.get(_SIZES)
    except KubeError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return
    text = (found.get("data") or {}).get(protocol.SIZES_KEY)
    try:
        # The extender has written none while it knows no GPUs.
        cluster.sizes = None if text is None else GpuSizes.from_json(str(text))
    except ReportError as error:
        cluster.warnings.append(f"ConfigMap {protocol.PUBLIC_NAMESPACE}/{protocol.SIZES}: {error}")


async def _read_verdicts(client: KubeClient, cluster: Cluster, namespace: str) -> None:
    """The extender's Events about pods that wait; none without the right to read them."""
    where, of_ours = path("api/v1", "namespaces", namespace, "events"), f"involvedObject.kind=Pod,type=Warning,source={_EXTENDER}"
    try:
        items = (await client.get(where, fieldSelector=of_ours, limit=_MOST_EVENTS)).get("items") or ()
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        return
    for event in items:
        uid = str((event.get("involvedObject") or {}).get("uid") or "")
        if event.get("reason") in _VERDICTS:
            cluster.told[uid] = as_text(str(event.get("message") or ""), _MOST_MESSAGE)


def _without_others_pods(cluster: Cluster, own: str) -> None:
    cluster.complete = False
    cluster.warnings.append(f"you may not list the pods of all namespaces, so only those of namespace {quote(own)} are known")


async def _read_into(
    client: KubeClient, path: str, selector: str, put: Callable[[Mapping[str, Any]], K], remove: Callable[[K], None]
) -> None:
    """As `_list`, without ever having all raw objects at once, and only with the fields that are read."""
    keys: set[K] = set()
    try:
        async for page in client.list_pages(path, decode=read_page, fieldSelector=selector):
            _put(page.get("items") or (), keys, put)
        return
    except KubeError as error:
        if error.status != _EXPIRED:
            raise
    before, keys = keys, set()
    _put((await client.get(path, fieldSelector=selector)).get("items") or (), keys, put)
    for gone in before - keys:
        remove(gone)


def _put(items: Iterable[Mapping[str, Any]], keys: set[K], put: Callable[[Mapping[str, Any]], K]) -> None:
    try:
        keys.update(map(put, items))
    except orjson.JSONDecodeError as error:
        raise KubeError(0, LOST, f"the API server sent no JSON ({error})") from None
    if len(keys) > MOST_OBJECTS:
        raise InputError(f"found more than {MOST_OBJECTS} objects in one list; no cluster has so many. Choose a namespace with -n")


def fill_from_files(cluster: Cluster, files: Sequence[str]) -> None:
    """From what `kubectl get nodes -o json` and `kubectl get pods -A -o json` have written, and with the back end DRA
    `kubectl get resourceslices,resourceclaims -A -o json`; "-" is the standard input."""
    found = {"Node": 0, "Pod": 0, "ResourceSlice": 0, "ResourceClaim": 0}
    put: dict[str, Callable[[Mapping[str, Any]], object]] = {
        "Node": cluster.set_node,
        "Pod": cluster.set_pod,
        "ResourceSlice": cluster.set_slice,
        "ResourceClaim": cluster.set_claim,
    }
    for file in files:
        for kind, item in _items(file):
            if kind in found:
                found[kind] += 1
                if found[kind] > MOST_OBJECTS:
                    raise InputError(f"{file}: found more than {MOST_OBJECTS} objects of kind {kind}; no cluster has so many")
                try:
                    put[kind](item)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise InputError(
                        f"{file}: found a {kind} that cannot be read ({error!r:.80}); expected it as kubectl writes it"
                    ) from None
    for kind in ("Node", "Pod"):
        if not found[kind]:
            raise InputError(f"found no {kind} in {', '.join(files)[:80]}; expected nodes and pods: kubectl get nodes,pods -A -o json")
    cluster.settle()


def _items(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, object) of each in a v1 list, or of the only one."""
    try:
        if file != "-" and Path(file).stat().st_size > MOST_FILE_BYTES:
            raise InputError(f"{file}: found more than {MOST_FILE_BYTES} bytes; expected less. Write it in several files")
        data = sys.stdin.buffer.read(MOST_FILE_BYTES) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    try:
        yield from read_objects(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{file}: found no JSON ({error}); expected the output of kubectl get nodes,pods -A -o json") from None
    except NoListError:
        raise InputError(
            f"{file}: found JSON that is not a Kubernetes list; expected the output of kubectl get nodes,pods -A -o json"
        ) from None


def read_file(file: str, most: int, expected: str) -> bytes:
    """The bytes of a file; "-" is the standard input. InputError for more than `most`, with what was expected instead."""
    try:
        if file != "-" and Path(file).stat().st_size > most:
            raise InputError(f"{file}: found more than {most} bytes; expected {expected}")
        return sys.stdin.buffer.read(most) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def read_manifests(file: str) -> list[tuple[dict[str, Any], int]]:
    """(pod, how many) of each Pod, and of each object with a pod template, in a YAML or JSON file; "-" is the standard input."""
    text = read_file(file, MOST_MANIFEST_BYTES, "manifests of pods")
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{file}: found no YAML ({quote(str(error))}); expected manifests of pods") from None
    found = [pod for document in documents for pod in _pods_of(document, file)]
    if not found:
        raise InputError(f"{file}: found no pod; expected a Pod, or an object with spec.template such as a Deployment or a Job")
    return found


def _pods_of(value: object, file: str) -> Iterator[tuple[dict[str, Any], int]]:
    if not isinstance(value, dict):
        raise InputError(f"{file}: found {quote(value)}; expected a Kubernetes object")
    if str(value.get("kind") or "").endswith("List"):
        for item in value.get("items") or ():
            yield from _pods_of(item, file)
        return
    metadata, spec = value.get("metadata") or {}, value.get("spec") or {}
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise InputError(f"{file}: found metadata or a spec that is not an object; expected a Kubernetes object")
    if value.get("kind") == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    name, template = str(metadata.get("name") or "pod"), spec.get("template")
    if value.get("kind") == "Pod":
        yield {**value, "metadata": {"namespace": "default", **metadata, "name": name}}, 1
    elif isinstance(template, dict):
        count = spec.get("replicas", spec.get("parallelism", 1))
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_REPLICAS:
            raise InputError(f"{file}: found {quote(count)} replicas of {quote(name)}; expected 0 to {MOST_REPLICAS}")
        pod_metadata = {"namespace": metadata.get("namespace") or "default", **(template.get("metadata") or {}), "name": name}
        yield {"metadata": pod_metadata, "spec": template.get("spec") or {}}, count


def need_all(cluster: Cluster, what: str, instead: str) -> None:
    """InputError where not all nodes and pods could be read. `what`: the command; instead: commands that such a user can run."""
    if not cluster.complete:
        raise InputError(f"{what} needs to list nodes and all pods. As you are: {instead}")


def explain_error(error: KubeError, server: str, needs: str) -> str:
    """For the person who reads it. needs: what the command lists."""
    if error.status == FORBIDDEN:
        return f"{error.message}\n  It needs to list {needs}: choose another user with --context, or have those rights granted"
    if error.status == 401:
        return f"{server} does not accept these credentials ({error.message}): renew them, or choose others with --context or --kubeconfig"
    if error.status == 0 and error.reason == UNREACHABLE:
        return f"cannot reach the API server: {error.message}\n  Is {server} right? The kubeconfig says so (--kubeconfig, --context)"
    return f"the API server at {server} cannot answer: {error}"
