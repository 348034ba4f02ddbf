# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that verify must see of one host, in one go. Read-only.

Private to this collection. The result is plain JSON: {"places", "now", "node_name", "kubelet", "runtime", "gpu": {…} or null,
"plane": {…} or null}; the second look during a probe has only what changes then.
"""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass
from typing import Any, Collection, Dict, List, Optional, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import EXTENDER, PLUGIN
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import control_plane as evidence_control_plane
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import daemons
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import gpu_node as evidence_gpu_node
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import kubelet_checkpoint
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_managers import managers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import NodeFacts, gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

PARTS = ("containers", "extender")
_ATTEMPTS = 3


@dataclass(frozen=True)
class Places:
    """What the host is, and where things are on it: the options of the module gpushare_verify_host. pki_dir "": plain http."""

    gpu_node: bool
    control_plane: bool
    install_dir: str = "/opt/gpushare"
    config_dir: str = "/etc/gpushare"
    pki_dir: str = ""
    extender_port: int = 32766
    memory_unit: str = ""
    metrics_plugin: str = ""
    metrics_extender: str = ""
    runtime_unit: str = "containerd.service"
    runtime_config: str = ""
    scheduler_manifest: str = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    scheduler_config: str = "/etc/kubernetes/gpushare/kube-scheduler.yaml"


def see(host: Host, places: Places, only: Optional[Collection[str]] = None) -> Dict[str, Any]:
    """Look at the host. only: parts of PARTS, None for everything."""
    seen: Dict[str, Any] = {"places": asdict(places), "gpu": None, "plane": None}
    if only is None:
        facts = gather(host, ["cards"] if places.gpu_node else [])
        seen["node_name"] = facts.kubelet.node_name
        seen["kubelet"] = {"running": facts.kubelet.running, "root": facts.kubelet.root}
        seen["runtime"] = daemons.runtime(host, places.install_dir)
        if places.gpu_node:
            seen["gpu"] = _gpu(host, places, facts)
        if places.control_plane:
            seen["plane"] = _plane(host, places)
    if places.gpu_node and (only is None or "containers" in only):
        seen["gpu"] = dict(seen["gpu"] or {}, containers=evidence_gpu_node.containers(host))
    if places.control_plane and (only is None or "extender" in only):
        ca = posixpath.join(places.pki_dir, "ca.crt") if places.pki_dir else ""
        seen["plane"] = dict(seen["plane"] or {}, health=evidence_control_plane.health(places.extender_port, ca))
    # Last: whatever was started before this moment has been seen.
    seen["now"] = daemons.now()
    return seen


def _gpu(host: Host, places: Places, facts: NodeFacts) -> Dict[str, Any]:
    smi, root = facts.nvidia_smi, facts.kubelet.root
    plugin, sockets = _plugin(host, root)
    configured = places.runtime_unit and facts.kubelet.runtime in ("containerd", None)
    return {
        "nvidia_smi": None if smi is None else smi.as_dict(),
        "driver": None if facts.driver is None else asdict(facts.driver),
        "plugin": plugin,
        "metrics": daemons.metrics(host, places.metrics_plugin, plugin["arguments"]),
        "tokens": _tokens(host, places, PLUGIN, "device-plugin"),
        "sockets": sockets,
        "registered": kubelet_checkpoint.registered_by_card(host, root),
        "managers": [asdict(one) for one in managers(host, root, places.install_dir) if one.active],
        "container_runtime": evidence_gpu_node.container_runtime(
            host, facts.kubelet.endpoint, places.runtime_unit, places.runtime_config, command.run
        )
        if configured
        else None,
        "images": evidence_gpu_node.images(host, facts.kubelet.endpoint),
        "cdi": evidence_gpu_node.cdi(host),
    }


def _plugin(host: Host, kubelet_root: str) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The device plugin's unit and the sockets, of one moment: a plugin that restarts meanwhile is no second one."""
    unit = daemons.unit(host, PLUGIN)
    for _unused in range(_ATTEMPTS):
        sockets = evidence_gpu_node.sockets(host, kubelet_root, evidence_gpu_node.listener)
        before, unit = unit, daemons.unit(host, PLUGIN)
        if unit["pid"] == before["pid"]:
            break
    return unit, sockets


def _plane(host: Host, places: Places) -> Dict[str, Any]:
    extender = daemons.unit(host, EXTENDER)
    return {
        "extender": extender,
        "metrics": daemons.metrics(host, places.metrics_extender, extender["arguments"]),
        "tokens": _tokens(host, places, EXTENDER, "extender"),
        "certificates": daemons.certificates(host, places.install_dir, places.pki_dir) if places.pki_dir else None,
        "scheduler": evidence_control_plane.scheduler_files(host, places.scheduler_manifest, places.scheduler_config),
    }


def _tokens(host: Host, places: Places, unit: str, short: str) -> Dict[str, Any]:
    """A daemon's own token, and the seed that it starts from."""
    # With DynamicUser, systemd keeps the state folder below private/ and links to it.
    return {
        "own": daemons.token(host, f"/var/lib/{unit}/token"),
        "seed": daemons.token(host, posixpath.join(places.config_dir, f"{short}.token")),
    }
