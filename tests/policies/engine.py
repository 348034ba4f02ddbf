# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The policies, asked through the API server's own admission plugin: tools/lab/go/policies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.dra import admission, objects
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.policies import in_cluster
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values

from gpushare_lab import components
from gpushare_lab.prepare import the_cache
from unit.fakes.plugins.cluster.manifests import of_role

Json = dict[str, Any]

_POLICIES = ("AdmissionPolicy", "AdmissionPolicyBinding")
WRITER = "system:serviceaccount:legacy:scheduler"
_ACCOUNT = "system:serviceaccount:kube-system:"


@dataclass(frozen=True)
class Who:
    """Somebody who sends requests. may_all: the authorizer allows this user everything; node: of the pod to which the token is bound."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    may_all: bool = False
    node: str = ""


TENANT = Who("tenant")
ADMINISTRATOR = Who("kubernetes-admin", may_all=True)
#: A controller with all rights, which makes what its tenants ask for.
CONTROLLER = Who(f"{_ACCOUNT}gitops", may_all=True)
SCHEDULER = Who("system:kube-scheduler")
KUBELET = Who("system:node:gpu1", ("system:nodes", "system:authenticated"))
EXTENDER = Who(f"{_ACCOUNT}gpushare-extender")
PLUGIN = Who(f"{_ACCOUNT}gpushare-device-plugin-gpu1")
#: The same as pods of the cluster, whose accounts all of a kind share.
SYSTEM = "gpushare-system"
POD_SCHEDULER = Who(f"system:serviceaccount:{SYSTEM}:gpushare-scheduler", node="cp1")
POD_PLUGIN = Who(f"system:serviceaccount:{SYSTEM}:gpushare-device-plugin", node="gpu1")
UNBOUND = Who(POD_PLUGIN.name)


@dataclass(frozen=True)
class Request:
    """A request of `who`: to create an object, to make the one before into it, or to delete that one, without an object.

    where: the resource, with its subresource. group: of the resource.
    """

    who: Who
    where: str
    object: Json | None
    before: Json | None = None
    measured: int = 0
    group: str = ""

    def as_json(self) -> Json:
        resource, _, subresource = self.where.partition("/")
        who: Json = {"user": self.who.name, "groups": list(self.who.groups), "may_all": self.who.may_all}
        who["extra"] = {"authentication.kubernetes.io/node-name": [self.who.node]} if self.who.node else {}
        asked = {"object": self.object, "before": self.before, "measured": self.measured}
        return {**who, **asked, "group": self.group, "resource": resource, "subresource": subresource}


@dataclass(frozen=True)
class Answer:
    """denied: why, "" where the request passes; seconds: CPU time of the policies, where it was measured, and reading: of the objects.

    made: the object that policies have made of the request's, None where they have not changed it. failed: why one of them could not.
    """

    denied: str
    seconds: float
    reading: float
    made: Json | None = None
    failed: str = ""


@cache
def policies() -> tuple[Json, ...]:
    """The policies for daemons on hosts, with one writer besides the daemons."""
    return tuple(of_role("admission", writers=[WRITER], token_seconds=604800))


@cache
def policies_by_claims() -> tuple[Json, ...]:
    """The policies of the back end dra that make claims of limits, and those that reject what no claim can say."""
    return tuple(made for made in admission("GiB") if made["kind"].endswith(_POLICIES))


@cache
def every_policy_by_claims() -> tuple[Json, ...]:
    """Those, and the policies of the daemons of the back end dra."""
    return tuple(made for made in objects(Values(image="x", scheduler_image="x")) if made["kind"].endswith(_POLICIES))


@cache
def policies_in_cluster() -> tuple[Json, ...]:
    """The policies for daemons that are pods, without the one that writes the scheduler's name."""
    return tuple(in_cluster(SYSTEM, [WRITER], mutating=False))


def ask(requests: Sequence[Request], among: Sequence[Json]) -> list[Answer]:
    program = components.policies(the_cache()) / "policies"
    asked = json.dumps({"policies": list(among), "requests": [request.as_json() for request in requests]})
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Answer(**answer) for answer in json.loads(done.stdout)]
