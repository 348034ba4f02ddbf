# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes our objects and our traces on nodes out of a cluster through kubectl. No Ansible here."""

from __future__ import annotations

import json
import time
from typing import Dict, List, Sequence

from ansible_collections.gpushare.kubernetes.plugins.module_utils import _remove_cluster
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError, as_list
from ansible_collections.gpushare.kubernetes.plugins.module_utils._remove_cluster import LABEL, MANAGER, Named, NodeTraces

POLL_SECONDS = 2.0


class Removal(object):
    """One run. Looks at everything first, so that check mode says what `apply` then does.

    wanted: nodes whose device plugin is gone; everything: what all hosts share goes, too; wait: seconds for kubelet to let go.
    removed, left: in words.
    """

    def __init__(self, kubectl: Kubectl, wanted: Sequence[str], everything: bool, wait: float) -> None:
        self.kubectl = kubectl
        self.wait = wait
        nodes = self.nodes()
        self.mine = [node for name, node in nodes.items() if name in wanted]
        objects = [one for path, version, kind in _remove_cluster.KINDS for one in self.listed(path, version, kind)]
        accounts = {one.name for one in objects}
        using = [
            name for name, node in nodes.items() if name not in wanted and node.in_use and _remove_cluster.OF_A_NODE + name in accounts
        ]
        everything = everything and not using
        self.objects = _remove_cluster.going(objects, wanted, everything)
        self.left = [
            {"what": one.title, "why": "other hosts still use it" + (": " + ", ".join(using) if using else "; uninstall them, too")}
            for one in objects
            if one not in self.objects
        ]
        self.removed = [one.title for one in self.objects]
        for node in self.mine:
            self.look(node)

    def nodes(self) -> Dict[str, NodeTraces]:
        """Every node's traces by name."""
        items = json.loads(self.kubectl.text(["get", "--raw", "/api/v1/nodes"]))["items"]
        return {item["metadata"]["name"]: _remove_cluster.traces(item) for item in items}

    def listed(self, path: str, version: str, kind: str) -> List[Named]:
        """Our objects of one kind; none where the API server does not have the kind."""
        try:
            items = json.loads(self.kubectl.text(["get", "--raw", path]))["items"]
        except KubectlError as error:
            if path.startswith(_remove_cluster.OPTIONAL) and "NotFound" in str(error):
                return []
            raise
        return _remove_cluster.ours(items, version, kind)

    def look(self, node: NodeTraces) -> None:
        """Note what goes from a node and what stays."""
        self.removed += [f"label {label} of node {node.name}" for label in node.claimed]
        if node.labelled_by_others:
            self.left.append({"what": f"label {LABEL} of node {node.name}", "why": "somebody else has set it"})
        self.removed += [f"annotation {key} of node {node.name}" for key in node.annotations]
        self.left += [{"what": f"annotation {key} of node {node.name}", "why": "this collection does not set it"} for key in node.others]
        if self.wait or _remove_cluster.forgotten(node):
            self.removed += [f"resource {resource} of node {node.name}" for resource in sorted(node.capacity)]
        else:
            self.keep(node)

    def keep(self, node: NodeTraces) -> None:
        """Say why a node still has our resources."""
        why = (
            "kubelet keeps it for five minutes after the device plugin has gone and then says 0; run again after that. If another device "
            "plugin serves it, or kubelet does not run, it stays"
        )
        what = [f"resource {resource} of node {node.name}" for resource, value in sorted(node.capacity.items())]
        self.left += [{"what": one, "why": why} for one in what]
        self.removed = [one for one in self.removed if one not in what]

    def apply(self) -> None:
        """Do it. KubectlError as soon as something does not work; the next run goes on."""
        if self.objects:
            document = as_list([one.reference() for one in self.objects])
            self.kubectl.text(["delete", "--ignore-not-found", "-f", "-"], document)
        for node in self.mine:
            if node.claimed:
                # An empty claim takes away what only we have claimed.
                claim = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}
                manager = f"--field-manager={MANAGER}"
                self.kubectl.text(["apply", "--server-side", manager, "-f", "-"], json.dumps(claim))
            if node.annotations:
                self.kubectl.text(["annotate", "node", node.name, *(key + "-" for key in node.annotations)])
        self.remove_resources()

    def remove_resources(self) -> None:
        """Take our resources out of the status of each node whose kubelet has let go of them, within the time given."""
        names = {node.name for node in self.mine}
        deadline = time.monotonic() + self.wait
        while True:
            pending = [node for name, node in self.nodes().items() if name in names and (node.capacity or node.allocatable)]
            pending = [node for node in pending if not self.forget(node)]
            if not pending or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        if self.wait:
            for node in pending:
                self.keep(node)

    def forget(self, node: NodeTraces) -> bool:
        """Take our resources out of a node's status, if its kubelet has let go of them."""
        if not _remove_cluster.forgotten(node):
            return False
        patch = json.dumps(_remove_cluster.status_patch(node))
        try:
            self.kubectl.text(["patch", "node", node.name, "--subresource=status", "--type=json", "-p", patch])
        except KubectlError as error:
            # Between looking and writing somebody has registered the resource again.
            if "test operation" not in str(error) and "testing path" not in str(error):
                raise
            return False
        return True
