# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether NVIDIA's GPU Operator leaves GPU nodes to our device plugin, in both modes.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...module_utils._formats.finding import HostFindings, few
from ...module_utils._takeover.operator import API_VERSION, CLUSTER_KIND, GROUP, KIND, PATCH, RESOURCE, WITHOUT_PLUGIN

_OFF = "devicePlugin.enabled: false"


def judge(found: HostFindings, facts: Mapping[str, Any], ours: Collection[str], mode: str) -> None:
    """facts: of `_takeover/operator.py`. ours: names of the GPU nodes of this run. mode: `gpushare_gpu_operator`."""
    policies, versions = facts["policies"], facts["versions"]
    if versions and API_VERSION not in versions:
        seen = f"a {KIND} of {GROUP}/{_few(versions)}"
        cure = "use a release of the GPU Operator that serves it, or a later release of this collection"
        found.error("operator", seen, f"{GROUP}/{API_VERSION}, which this release knows", cure)
    elif not policies and mode == PATCH and facts["clusters"]:
        cure = f"leave gpushare_gpu_operator out: nodes leave a {CLUSTER_KIND} by a label (docs/operate/migrate.md)"
        seen = f"no {KIND} but a {CLUSTER_KIND} of the GPU Operator, and gpushare_gpu_operator: {PATCH}"
        found.error("operator", seen, "one", cure)
    elif not policies and mode == PATCH:
        cure = "install the GPU Operator first, or leave gpushare_gpu_operator out"
        found.error("operator", f"no {KIND} of the GPU Operator, and gpushare_gpu_operator: {PATCH}", "one", cure)
    elif len(policies) > 1:
        cure = f"delete those that it ignores: kubectl get {RESOURCE} shows their state"
        found.error("operator", f"{len(policies)} objects {KIND} ({_few([policy['name'] for policy in policies])})", "one", cure)
    elif policies:
        _judge_policy(found, policies[0], sorted(set(facts["nodes"]) & set(ours)), _strangers(facts, ours), mode)


def goes(facts: Mapping[str, Any], mode: str) -> bool:
    """Whether this run switches the operator's device plugin off, or finds it so."""
    return mode == PATCH or any(not policy["enabled"] for policy in facts["policies"])


def _judge_policy(found: HostFindings, policy: Mapping[str, Any], here: Sequence[str], strangers: Sequence[str], mode: str) -> None:
    name = policy["name"]
    if policy["problem"]:
        found.error("operator", policy["problem"], _OFF, f"correct it: kubectl edit {RESOURCE} {name}")
        return
    if not policy["enabled"] or not here:
        return
    elsewhere = ""
    if strangers:
        elsewhere = f"; {_few(strangers)} lose nvidia.com/gpu then, until NVIDIA's device plugin serves them by its own chart"
    seen = f"{KIND} {name} with the GPU Operator's device plugin, on {_few(here)}"
    expected = f"{_OFF}, because a node where a label switches it off fails the operator's validation"
    if mode == PATCH and not policy["owner"]:
        if strangers:
            found.warn("operator", seen, _OFF, f"nothing to do: this run sets it, and uninstall restores it{elsewhere}")
        return
    if policy["owner"]:
        seen += f", which belongs to {policy['owner']}"
        cure = f"set it there, because that would undo a change: {_command(policy)}{elsewhere}"
    else:
        cure = f"set gpushare_gpu_operator: {PATCH}, or run: {_command(policy)}{elsewhere}"
    found.error("operator", seen, expected, cure)


def _command(policy: Mapping[str, Any]) -> str:
    """The command for its administrator. Of a Helm release the values decide, so that a patch would last until its next upgrade."""
    space, slash, release = policy["release"].partition("/")
    if slash:
        return f"helm upgrade {release} nvidia/gpu-operator --namespace {space} --reuse-values --set devicePlugin.enabled=false"
    return f"kubectl patch {RESOURCE} {policy['name']} --type=merge --patch '{WITHOUT_PLUGIN}'"


def _strangers(facts: Mapping[str, Any], ours: Collection[str]) -> list[str]:
    """The operator's nodes that are none of ours."""
    return sorted(set(facts["nodes"]) - set(facts["ours"]) - set(ours))


def _few(names: Sequence[str]) -> str:
    """Each with at most 80 characters: they are the cluster's."""
    return few(name[:80] for name in names)
