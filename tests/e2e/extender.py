# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender of a lab, asked on its own host as kube-scheduler asks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, Cluster

VERBS = "/gpushare-scheduler"

_ASK = """
import json, ssl, sys, urllib.error, urllib.request
path, body, certificate = json.loads(sys.argv[1])
pki = "/etc/gpushare/pki/scheduler/"
context = ssl.create_default_context(cafile=pki + "ca.crt")
if certificate:
    context.load_cert_chain(pki + "tls.crt", pki + "tls.key")
data = None if body is None else json.dumps(body).encode()
try:
    reply = urllib.request.urlopen("https://127.0.0.1:32766" + path, data, 10, context=context)
except urllib.error.HTTPError as error:
    reply = error
print(json.dumps([reply.status, reply.read().decode()]))
"""


def ask(cluster: Cluster, path: str, body: object = None, *, certificate: bool = True) -> tuple[int, str]:
    """Status and text of an answer. body: POST with it as JSON; certificate: whether the scheduler's is shown."""
    status, text = json.loads(cluster.on(CONTROL_PLANE, "python3", "-c", _ASK, json.dumps([path, body, certificate])))
    return status, text


def verb(cluster: Cluster, name: str, body: object) -> Any:
    """The answer of a verb."""
    status, text = ask(cluster, f"{VERBS}/{name}", body)
    assert status == 200, text
    return json.loads(text)


def filtered(cluster: Cluster, pod: Json, nodes: Sequence[str]) -> Any:
    """ExtenderFilterResult for a pod as the API has it."""
    return verb(cluster, "filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})


def bound(cluster: Cluster, pod: Json, node: str) -> str:
    """The error of bind, "" if the pod is on that node."""
    of = pod["metadata"]
    answer = verb(cluster, "bind", {"PodName": of["name"], "PodNamespace": of["namespace"], "PodUID": of["uid"], "Node": node})
    return str(answer["Error"])


def ledgers(cluster: Cluster) -> dict[str, Json]:
    """All that the extender knows, by node."""
    status, text = ask(cluster, f"{VERBS}/ledger")
    assert status == 200, text
    return {node["name"]: node for node in json.loads(text)["nodes"]}


def ledger(cluster: Cluster, node: str) -> Json:
    """All that the extender knows of a node; {} if nothing."""
    return ledgers(cluster).get(node, {})
