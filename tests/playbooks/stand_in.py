# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of every module of the collection in tests/playbooks/stand_ins.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import plans

FOLDER = Path(os.environ["STAND_INS"])
GPU_NODES = ["gpu1", "gpu2"]
SYSTEM = {"id": "debian", "like": [], "version": "12", "architecture": "x86_64"}
PLAN = {
    **{key: [] for key in ("headers", "packages", "replaces", "services", "modules", "options")},
    **dict.fromkeys(("blacklist", "initramfs", "run_file", "module", "repository", "change"), ""),
    "version": "580.126.20",
}
KUBELET = {"running": True, "root": "/var/lib/kubelet", "version": "v1.36.3", "runtime": "containerd"}
#: The modules that change nothing, by name or by name and `what`.
READ = (
    *("gpu_node_info", "nvidia_smi_info", "gpushare_judge", "gpushare_verify_host", "gpushare_verify_cluster"),
    *("gpushare_sharing strategy", "gpushare_daemon token", "gpushare_api facts", "gpushare_api nodes", "gpushare_cluster identity"),
)
EMPTY: dict[str, Any] = {key: [] for key in ("files", "notes", "steps", "left", "removed", "stopped", "restored", "objects", "missing")}
#: Keys of answers, by name or by name and `what`.
ANSWERS: dict[str, dict[str, Any]] = {
    "gpushare_api facts": {"nodes": ["cp1", "gpu1", "gpu2"], "version": "v1.36.3"},
    "gpushare_api nodes": {"pods": [], "without_node": []},
    "gpushare_api returned": {"served": [], "kept": []},
    "gpushare_cluster": {"unserved": []},
    "gpushare_cluster identity": {"kubeconfig": "", "due": {}, "seeds": {}},
    "gpushare_daemon token": {"own": None},
    "gpu_mem_capacity": {"ok": True},
    "gpushare_driver": {"processes": [], "reboot": ""},
    "gpushare_judge driver": {"due": False, "plan": PLAN, "info": {"processes": []}},
    "gpushare_judge in_cluster": {
        "nodes": GPU_NODES,
        "on_hosts": GPU_NODES,
        "labels": [],
        "obsolete": [],
        "former": [],
        "runtime_class": "",
        "kubelet_root": "/k",
    },
    "gpushare_judge take_over": {"rejections": [], "moves": {}, "writers": [], "plugins": []},
    "gpushare_judge preflight": {"ok": True, "reasons": []},
    "gpushare_judge verify": {"images": {}, "left_behind": [], "unproven": {}},
    "gpushare_node": {"done": True, "ready": True},
    "gpushare_packages": {"versions": {}},
    "gpushare_runtime_env": {"environment": "/opt/gpushare/new", "linked": True},
    "gpushare_sharing mps": {"waiting": []},
    "gpushare_sharing strategy": {"strategy": "volume-mounts", "mps": [], "driver": "580", "own": None},
    "gpushare_toolkit": {"strategy": "volume-mounts", "mps": [], "cdi": {"off": ""}},
    "gpushare_traces report": {"words": "", "report": {}},
    "gpushare_verify_cluster": {
        "seen": {"nodes": [{"metadata": {"name": name}, "status": {"allocatable": {"aliyun.com/gpu-mem": "8"}}} for name in GPU_NODES]}
    },
    "kube_scheduler_extender": {"diff": []},
    "nvidia_smi_info": {"problem": None, "gpus": [], "driver_version": "580.126.20"},
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """What the module would have answered."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known, arguments = task_vars or {}, dict(self._task.args)
        host, module = str(self._task.delegate_to or known["inventory_hostname"]), self._task.action.rpartition(".")[2]
        what = f"{module} {arguments['what']}" if "what" in arguments else module
        answer = {**self._answer(what), **self._host(known, what)}
        changed = False if module in READ or what in READ else self._change(host, what, arguments)
        if changed and arguments.get("state") == "absent":
            answer["files"] = [f"restored by {arguments.get('owner', module)}"]
        call = {"host": host, "module": module, "arguments": arguments, "check": bool(self._task.check_mode), "changed": changed}
        with (FOLDER / "calls").open("a") as log:
            log.write(json.dumps(call, default=str) + "\n")
        return {**answer, "changed": changed, "changes": changed}

    @staticmethod
    def _answer(what: str) -> dict[str, Any]:
        return {**EMPTY, **ANSWERS.get(what.partition(" ")[0], {}), **ANSWERS.get(what, {})}

    def _plan(self, host: str, name: str) -> dict[str, Any]:
        """The answer of a plan that the host makes while its facts are gathered."""
        (operation,) = (plan.operation for known, _role, _owner, plan in plans() if known == name)
        changes = operation not in READ and not self._place(host, operation).exists()
        return {**self._answer(operation), "changed": False, "changes": changes}

    @staticmethod
    def _place(host: str, what: str, *owner: str) -> Path:
        return FOLDER / "hosts" / "-".join([host, what, *owner])

    def _host(self, known: dict[str, Any], what: str) -> dict[str, Any]:
        name = known["inventory_hostname"]
        if what == "gpushare_judge host":
            plane = {"present": name in known["groups"]["kube_control_plane"]}
            facts = {"kubelet": {**KUBELET, **known.get("kubelet", {})}, "control_plane": plane, "distribution": {"name": "kubeadm"}}
            answers = {plan: self._plan(name, plan) for plan in self._task.args.get("plans", ())}
            return {"node_name": name, "facts": facts, "reasons": [], "answers": answers}
        if what == "gpu_node_info":
            return {
                "node_name": name,
                "kubelet_running": True,
                "kubelet": KUBELET,
                "distribution": {"name": "kubeadm"},
                "system": SYSTEM,
                "python_packages": ["python3-venv"],
            }
        if what == "gpushare_verify_host":
            return {
                "seen": {
                    "gpu": name.startswith("gpu"),
                    "plane": not name.startswith("gpu"),
                    "places": {"dashboard": False},
                    "node_name": name,
                }
            }
        return {}

    def _change(self, host: str, what: str, arguments: dict[str, Any]) -> bool:
        """Whether it changes, or would change, what there is on the host."""
        absent = arguments.get("state") == "absent" or arguments.get("what") in ("absent", "services", "leftovers", "remove_objects")
        place = self._place(host, what, *([str(arguments["owner"])] if "owner" in arguments else []))
        changed = place.exists() if absent else not place.exists()
        if changed and not self._task.check_mode:
            place.unlink() if absent else place.touch()
        return changed
