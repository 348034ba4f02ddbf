# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the API server, judge what it says together with the variables, and make the objects of an installation in the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...module_utils._cluster.names import NAMESPACE, PLUGIN_ACCOUNT_PREFIX
from ...module_utils._formats.finding import ERROR, Finding
from ...module_utils._scheduler.scheduler_config import percentage_by_default
from .._answers import ask, read_variables
from .._manifests import presets
from .._manifests.in_cluster import objects, obsolete, rights
from .._manifests.values import Values, scheduler_image
from .._manifests.workloads import node
from .._preflight import variables as preflight_variables
from .._preflight.bundle import checked
from .._preflight.in_cluster import Bundled, InClusterSettings, former_of, judge
from .._preflight.reasons import accept, no_answer
from .._settings.rows import followed
from .judge import Judge

_ROLE = "in_cluster"
#: Variables of the role that follow from its options.
_KUBECONFIG, _HOSTS = "__in_cluster_kubeconfig", "__in_cluster_hosts"


class InClusterJudge(Judge):
    """Changes nothing. Its settings are the variables of the role."""

    options = {
        # Of a change of the mode: the services on the hosts go on for now; the schedulers' pods come later.
        "changes": {"type": "bool", "default": False},
        # Whether the run reaches the control planes, too, and adds the extender to their kube-schedulers.
        "wires": {"type": "bool", "default": False},
        "replicas": {"type": "int", "default": Values.replicas},
        "wait": {"type": "int", "default": 0},
    }

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known = preflight_variables.variables()
        settings, reasons = typed(self._given(), known)
        if any(reason.severity == ERROR for reason in reasons):
            return self.verdict(reasons)
        waits = settings["gpushare_image"].startswith("localhost/") and not self._action._task.check_mode
        own = read_variables(self._action, self._known, {name: name for name in (_KUBECONFIG, _HOSTS)})
        question = {"what": "facts", "kubectl": settings["gpushare_kubectl"], "kubeconfig": own[_KUBECONFIG]}
        question |= {"namespace": settings["gpushare_namespace"], "nodes": settings["gpushare_cluster_nodes"]}
        question |= {"image": settings["gpushare_image"], "wait": arguments["wait"] if waits else 0}
        question |= {"rules": rights(_roles_of(settings)), "backend": settings["gpushare_backend"]}
        answer = ask(self._action, self._known, "gpushare.kubernetes.gpushare_in_cluster", question)
        if answer.get("failed"):
            why = " ".join(str(answer.get("msg")).split())[-300:]
            return self.verdict([no_answer(why, "this machine", "gpushare_kubeconfig")])
        facts = answer["facts"]
        bundle = self._bundle(settings, own[_HOSTS], self._known)
        if isinstance(bundle, Finding):
            return self.verdict([bundle])
        image = settings["gpushare_scheduler_image"] or scheduler_image(facts["version"])
        asked = InClusterSettings(
            **{
                **followed(InClusterSettings, settings),
                "scheduler_image": image,
                "evicts": settings["gpushare_overuse"] == "evict",
                "wires": arguments["wires"],
                "changes": arguments["changes"],
                "bundle": bundle,
            }
        )
        percentage = settings["gpushare_percentage_of_nodes_to_score"]
        fields = Values.by_variables(settings)
        on_hosts = facts["on_hosts"] if arguments["changes"] else []
        users = [f"system:serviceaccount:{NAMESPACE}:{account}" for account in on_hosts]
        values = Values(
            **{
                **fields,
                "writers": [*fields["writers"], *users],
                "replicas": arguments["replicas"],
                "default_scheduler": _beside(settings),
                "scheduler_image": image,
                "policies": "ValidatingAdmissionPolicy" in facts["admission"],
                "openshift": settings["gpushare_openshift"] or facts["openshift"],
                "mutating": "MutatingAdmissionPolicy" in facts["admission"],
                "percentage": percentage_by_default(facts["number"]) if percentage < 0 else percentage,
            }
        )
        accepted = [*settings["gpushare_preflight_accept"], *(["deploy_mode"] if arguments["changes"] else [])]
        result = self.verdict([*reasons, *accept(judge(facts, asked), accepted)])
        if result.get("failed"):
            return result
        made = objects(values)
        labels = [node(fact["name"]) for fact in facts["nodes"]] if settings["gpushare_cluster_nodes"] else []
        return {
            **result,
            "objects": made,
            "obsolete": obsolete(values),
            "backend": asked.backend,
            # The run removes these before it applies anything. No pod has a GPU of theirs.
            "former": former_of(facts, asked.backend),
            "labels": labels,
            "nodes": [fact["name"] for fact in facts["nodes"]],
            "runtime_class": asked.runtime_class,
            "kubelet_root": values.kubelet_root,
            "on_hosts": [account[len(PLUGIN_ACCOUNT_PREFIX) :] for account in on_hosts if account.startswith(PLUGIN_ACCOUNT_PREFIX)],
        }

    @staticmethod
    def _bundle(settings: dict[str, Any], hosts: list[str], task_vars: dict[str, Any]) -> Bundled | Finding | None:
        """The images of the bundle, and the nodes by the names of the inventory's hosts."""
        if not settings["gpushare_bundle"]:
            return None
        contents = checked(settings["gpushare_bundle"], settings["gpushare_bundle_key"], preflight_variables.COLLECTION)
        if isinstance(contents, Finding):
            return contents
        images: dict[str, set[str]] = {}
        for image in contents.images:
            images.setdefault(image.architecture, set()).update(image.references)
        names = [str(task_vars["hostvars"][host].get("gpushare_node_name") or host).lower() for host in hosts]
        # kubelet's own name is that of the host, with its domain or without.
        return Bundled(images, {*names, *(name.partition(".")[0] for name in names)})

    def _given(self) -> dict[str, Any]:
        """The variables of the role, with the values in them."""
        names = preflight_variables.role_options(preflight_variables.COLLECTION / "roles" / _ROLE, "main")
        return read_variables(self._action, self._known, {name: name for name in names})


def _beside(settings: Mapping[str, Any]) -> bool:
    """Whether the extender is beside the cluster's own scheduler."""
    return bool(settings["gpushare_scheduler"] == "default")


def _roles_of(settings: Mapping[str, Any]) -> Values:
    """The values by which the roles of an installation differ."""
    backend, overuse, dashboard = (settings[f"gpushare_{name}"] for name in ("backend", "overuse", "cluster_dashboard"))
    return Values("", "", backend=backend, overuse=overuse, dashboard=dashboard, default_scheduler=_beside(settings))


def typed(given: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
    """The settings as the roles' argument specifications have them, with those of the preset, and what is wrong with them together."""
    values = {name: preflight_variables.of_type(name, value, known[name].spec)[0] for name, value in given.items()}
    specs = {name: known[name].spec for name in values}
    reasons = preflight_variables.impossible("", values, specs) + preflight_variables.together("", values)
    preset = values.get("gpushare_preset")
    if any(reason.severity == ERROR for reason in reasons) or not preset:
        return values, reasons
    settings = presets.applied(values, preset, {name: spec.get("default") for name, spec in specs.items()})
    by_preset = [reason for reason in preflight_variables.together("", settings) if reason not in reasons]
    cure = "; a value of your own that is not the default takes the place of the preset's"
    return settings, reasons + [replace(why, found=f"{why.found}, by gpushare_preset: {preset}", cure=why.cure + cure) for why in by_preset]
