# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""SecurityContextConstraints on an API server that has the kind: applied by the module's own code, seen by preflight, removed."""

from __future__ import annotations

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import WantedObjects, converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import Removal
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import openshift, workloads
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values

from others.server import CONSTRAINTS, Server

SPACE = "gpushare-system"
KIND = "securitycontextconstraints.security.openshift.io"


def test_constraints_are_applied_seen_and_removed(server: Server) -> None:
    assert gather(server.kubectl, SPACE, []).openshift is False
    server.define(CONSTRAINTS)
    assert gather(server.kubectl, SPACE, []).openshift is True
    values = Values(image="i", scheduler_image="s", openshift=True)
    wanted = WantedObjects(apply=[workloads.namespace(values), *openshift.objects(SPACE)], namespace=SPACE)
    try:
        assert len(converge(server.kubectl, wanted, False).objects) == 6
        assert converge(server.kubectl, wanted, False).changed is False
        found = server.get(KIND, "gpushare-device-plugin")
        # What the server has left out, because its schema does not know it, or changed.
        made = openshift.constraints()
        assert {key: found.get(key) for key in made if key != "metadata"} == {
            key: value for key, value in made.items() if key != "metadata"
        }
        removal = Removal(server.kubectl, [], True, 0)
        assert "SecurityContextConstraints gpushare-device-plugin" in removal.removed
        removal.apply()
        assert server.kubectl.items(["get", KIND]) == []
    finally:
        server.kubectl.text(["delete", "namespace", SPACE, "--wait=false", "--ignore-not-found"])
