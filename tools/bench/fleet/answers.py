#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The answers of a stand-in host to the modules that Ansible sends it; nothing outside the standard library.

Over ssh this file is the host's Python: it reads from its input what Ansible has packed for a real one. It answers with what `machines.py`
has prepared, under the host's own names, and keeps per host what a module has changed, so that a second call changes nothing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

#: Their names in what is prepared, and the start of the UUIDs of their GPUs.
GPU_NODE, PLANE, UUID = "node-1", "cp1", "GPU-00000000"
_CALLS, _HOSTS, _STATE = "calls", "hosts.json", "state"
FAULTS = "faults.json"
_ENVIRONMENT = "/opt/gpushare/0.1.0-0123456789ab"
_TOKEN_SECONDS = 604800
_REMOVED: Json = {key: [] for key in ("stopped", "removed", "restored", "left", "notes", "diff")}
_CHANGES: Json = {key: [] for key in ("steps", "files", "notes", "diff")}
#: Of the facts, those that are always gathered.
_ALWAYS = ("changed", "node_name", "kubelet_root", "kubelet_running", "effective_uid", "distribution", "kubelet", "control_plane")
_MOVED: Json = {key: [] for key in ("objects", "left", "kept", "served", "diff")}


def payload(sent: bytes) -> tuple[str, Json]:
    """The module and its arguments in what Ansible sends to a Python. ValueError."""
    # Of the call at its end, one argument a line; the archive is one of them.
    lines = sent.rpartition(b"_ansiballz_main(\n")[2].decode().splitlines()
    given = dict(line.rstrip(",").strip().split("=", 1) for line in lines if "=" in line)
    if "params" not in given or "ansible_module" not in given:
        raise ValueError(f"found {sent[-80:]!r}; expected a module as ansible-core 2.21 packs it")
    name = ast.literal_eval(given["ansible_module"]).rpartition(".")[2]
    return name, json.loads(ast.literal_eval(given["params"]))["ANSIBLE_MODULE_ARGS"]


class World:
    """All hosts of one inventory, below a folder. names: each inventory name, which is its node's name, with its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepared: Json = json.loads((folder / "machines.json").read_text())
        self.names: dict[str, int] = json.loads((folder / _HOSTS).read_text())
        # Of hosts that do not answer as they ought to: "unreachable", "garbage", "hang", "drop", which ends the connection once it has
        # changed something, or "alpine", a distribution that nothing here supports.
        self.faults: dict[str, str] = json.loads((folder / FAULTS).read_text()) if (folder / FAULTS).exists() else {}

    def answer(self, host: str, sent: bytes) -> bytes:
        """What the host prints, and a line about the call."""
        module, arguments = payload(sent)
        found = Host(self, host).answer(module, arguments)
        printed = json.dumps({**found, "invocation": {"module_args": arguments}}).encode()
        with (self.folder / _CALLS).open("a") as log:
            log.write(f"{host} {module} {len(sent)} {len(printed)}\n")
        return printed


@functools.cache
def world(folder: Path) -> World:
    return World(folder)


class Host:
    """One host and what has been changed on it."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._path = world.folder / _STATE / name
        # Everything is installed before the first run.
        self._settled = world.prepared["is_settled"]
        self._there: Json = json.loads(self._path.read_text()) if self._path.exists() else {}

    def answer(self, module: str, arguments: Json) -> Json:
        what = str(arguments.get("what", ""))
        name = f"_{module}_{what}" if hasattr(self, f"_{module}_{what}") else f"_{module}"
        make = getattr(self, name, None)
        if make is None:
            return {"failed": True, "changed": False, "msg": f"this stand-in has no answer to {module} {what}"}
        before = json.dumps(self._there)
        answer: Json = make(arguments)
        if json.dumps(self._there) != before and not arguments.get("_ansible_check_mode"):
            self._path.write_text(json.dumps(self._there))
        return answer

    def _mine(self, value: Json, name: str = "") -> Json:
        """What is prepared, as of the node of this name."""
        name = name or self._name
        text = json.dumps(value).replace(UUID, f"GPU-{self._world.names[name]:08x}")
        mine: Json = json.loads(text.replace(GPU_NODE, name).replace(PLANE, name))
        return mine

    def _kind(self) -> str:
        return "plane" if self._name.startswith("cp") else "gpu"

    def _put(self, key: str, value: Any = True) -> bool:
        changed = self._there.get(key) != value and not self._settled
        if changed:
            self._there[key] = value
        return changed

    def _brought(self, key: str, arguments: Json, path: str) -> Json:
        """The answer of a module whose `state` is present or absent."""
        is_absent = arguments.get("state") == "absent"
        changed = self._there.pop(key, None) is not None if is_absent else self._put(key)
        content = f"# {path}\n" * 20
        diff = {"before_header": path, "after_header": path, "before": content * is_absent, "after": content * (not is_absent)}
        return {"changed": changed, "files": [path] * changed, "notes": [], "diff": [diff] * changed}

    def _claims(self, subject: str) -> Json | None:
        issued = int(time.time()) - 3600 if self._settled else self._there.get("token")
        if not issued:
            return None
        return {"subject": subject, "uid": "u", "issued": issued, "expires": issued + _TOKEN_SECONDS, "accepted": True}

    # Modules on each host.

    def _gpu_node_info(self, arguments: Json) -> Json:
        found = self._mine(self._world.prepared["facts"][self._kind()])
        if self._world.faults.get(self._name) == "alpine":
            found["system"] = {**found["system"], "id": "alpine", "like": [], "version": "3.22", "name": "Alpine Linux v3.22"}
        return found if arguments.get("gather", [""]) else {key: value for key, value in found.items() if key in _ALWAYS}

    def _gpushare_sharing_plans(self, arguments: Json) -> Json:
        before, answers = json.dumps(self._there), {}
        for one in arguments["plans"]:
            module, _blank, what = self._world.prepared["operations"][one["name"]].partition(" ")
            answers[one["name"]] = self.answer(module, {**one["arguments"], "what": what, "_ansible_check_mode": True})
            self._there = json.loads(before)
        facts = self._gpu_node_info(arguments)
        del facts["changed"]
        return {"changed": False, "facts": facts, "answers": answers}

    def _gpushare_runtime_env(self, arguments: Json) -> Json:
        sent = arguments["artifact"]
        known = {key: sent[key] for key in ("version", "wheel_sha256", "requirements_sha256")}
        is_whole = self._settled or self._there.get("environment") == known
        if not is_whole and "wheel_path" not in sent and not arguments.get("_ansible_check_mode"):
            return {"changed": False, "missing": True, "python_version": "3.11", "machine": "x86_64"}
        linked = self._settled or (is_whole and bool(self._there.get("linked")))
        switch = arguments.get("link", True) in (True, "True", "true") and self._put("linked")
        self._put("environment", known)
        diff = {"before": "none\n", "after": f"{_ENVIRONMENT}\n"}
        made: Json = {"environment": _ENVIRONMENT, "linked": linked, "python": "/usr/bin/python3.11", "removed": [], "diff": diff}
        return {"changed": not is_whole or switch, **made}

    def _gpushare_toolkit(self, arguments: Json) -> Json:
        found = self._brought("toolkit", arguments, "/etc/nvidia-container-runtime/config.toml")
        return {**found, "strategy": "volume-mounts", "now": "", "cdi": self._world.prepared["cdi"], "mps": []}

    def _container_runtime(self, arguments: Json) -> Json:
        found = self._brought("container_runtime", arguments, "/etc/containerd/config.toml")
        return {**found, "restarted": found["changed"], "restarted_at": time.time(), "why_restart": ""}

    def _kubelet_gates(self, arguments: Json) -> Json:
        return {"changed": False, "version": "v1.36.3", "feature_gates": {}, "restarted_at": None, "files": [], "notes": [], "diff": []}

    def _gpushare_sharing(self, arguments: Json) -> Json:
        own = self._claims(f"system:serviceaccount:kube-system:gpushare-device-plugin-{self._name}")
        cdi, driver = self._world.prepared["cdi"], self._world.prepared["seen"]["gpu"]["gpu"]["nvidia_smi"]["driver_version"]
        now = "volume-mounts" if own else ""
        return {"changed": False, "strategy": "volume-mounts", "now": now, "cdi": cdi, "mps": [], "driver": driver, "own": own}

    def _gpushare_daemon_token(self, arguments: Json) -> Json:
        return {"changed": False, "own": self._claims("system:serviceaccount:kube-system:gpushare-extender")}

    def _gpushare_daemon_certificates(self, arguments: Json) -> Json:
        changed = self._put("certificates")
        return {"changed": changed, "files": [arguments["path"]] * changed, "diff": {"before": "", "after": "ca.crt\n" * changed}}

    def _gpushare_daemon_service(self, arguments: Json) -> Json:
        whole = json.dumps([arguments.get(key) for key in ("unit", "config", "companions", "kubeconfig_content")])
        changed = self._put(f"daemon {arguments['name']}", hashlib.sha256(whole.encode()).hexdigest())
        if "seed_content" in arguments:
            self._there["token"] = int(time.time())
        path = f"/etc/systemd/system/{arguments['name']}.service"
        diff = {"before_header": path, "after_header": path, "before": "", "after": arguments["unit"]}
        return {"changed": changed, "restarted": changed, "diff": [diff] * changed}

    def _gpushare_traces_services(self, arguments: Json) -> Json:
        gone = [key for key in self._there if key.startswith("daemon ")]
        for key in [*gone, "token", "certificates"]:
            self._there.pop(key, None)
        files = [f"/etc/systemd/system/{key.partition(' ')[2]}.service" for key in gone]
        return {**_REMOVED, "changed": bool(gone), "stopped": gone, "removed": files}

    def _gpushare_traces_leftovers(self, arguments: Json) -> Json:
        changed = bool(self._there)
        self._there.clear()
        return {**_REMOVED, "changed": changed, "removed": [_ENVIRONMENT] * changed}

    def _gpushare_driver(self, arguments: Json) -> Json:
        return {**_CHANGES, "changed": False, "reboot": "", "at": time.time()}

    def _gpushare_packages(self, arguments: Json) -> Json:
        return {**_CHANGES, "changed": False, "manager": "apt", "versions": {}, "held": [], "left": []}

    def _stat(self, arguments: Json) -> Json:
        exists = self._settled or arguments["path"] in self._there
        installed = f"/opt/gpushare/current/bin/{arguments['path'].rpartition('/')[2]}"
        place = {"lnk_target": self._there.get(arguments["path"], installed)} if exists else {}
        return {"changed": False, "stat": {"exists": exists, "path": arguments["path"], **place}}

    def _file(self, arguments: Json) -> Json:
        changed = self._put(arguments["path"] if "path" in arguments else arguments["dest"], arguments["src"])
        return {"changed": changed, "dest": arguments.get("dest", ""), "src": arguments["src"], "state": "link"}

    def _gpushare_verify_host(self, arguments: Json) -> Json:
        seen = self._mine(self._world.prepared["seen"][self._kind()])
        seen["places"] = {name: arguments.get(name, default) for name, default in self._world.prepared["places"].items()}
        for name in ("gpu_node", "control_plane", "dashboard", "preemption"):
            seen["places"][name] = seen["places"][name] in (True, "True", "true")
        for name in ("extender_port", "extender_weight", "expect_gpus", "expect_memory_mib"):
            seen["places"][name] = int(seen["places"][name])
        seen["now"] = time.time()
        probe = self._world.folder / _STATE / "probes"
        if seen["gpu"] is not None:
            life = [seen["now"] - 86400, seen["now"] + 86400 * 300]
            seen["gpu"]["kubelet_life"] = life
            seen["gpu"]["containers"] = {self._container(): ["nvidia0"]}
            if probe.exists():
                seen["gpu"]["containers"][self._container("f")] = ["nvidia1"]
        if seen["plane"] is not None:
            seen["plane"]["lives"] = {"/etc/kubernetes/scheduler.conf": [seen["now"] - 86400, seen["now"] + 86400 * 300]}
        if arguments.get("only") is None:
            return {"changed": False, "seen": seen}
        again = {key: seen[key] for key in ("places", "now", "gpu", "plane", "doctor")}
        again["plane"] = None
        if again["gpu"] is not None:
            again["gpu"] = {"containers": again["gpu"]["containers"]}
            del again["doctor"]
        else:
            doctor = json.loads(again["doctor"]["answer"])
            doctor["health"]["filter_calls"] += 1000
            again["doctor"]["answer"] = json.dumps(doctor)
        return {"changed": False, "seen": again}

    def _container(self, filling: str = "c", name: str = "") -> str:
        return f"{self._world.names[name or self._name]:08x}".rjust(64, filling)

    # Modules on a control plane about the cluster.

    def _nodes(self) -> list[str]:
        return list(self._world.names)

    def _gpushare_node_ready(self, arguments: Json) -> Json:
        return {"changed": False, "ready": True}

    def _gpushare_api_facts(self, arguments: Json) -> Json:
        return {"changed": False, **self._world.prepared["api"], "nodes": self._nodes()}

    def _gpushare_api_nodes(self, arguments: Json) -> Json:
        accounts = [f"gpushare-device-plugin-{name}" for name in self._nodes() if not name.startswith("cp")]
        return {"changed": False, "accounts": accounts, "without_node": [], "states": {}, "pods": []}

    def _gpushare_api_returned(self, arguments: Json) -> Json:
        return {"changed": False, **_MOVED}

    def _gpushare_cluster_objects(self, arguments: Json) -> Json:
        names, diff = [], []
        for one in arguments["objects"]:
            name, text = f"{one['kind']} {one['metadata']['name']}", json.dumps(one, indent=1)
            if self._put(f"object {name}", hashlib.sha256(text.encode()).hexdigest()):
                names.append(name)
                diff.append({"before_header": name, "after_header": name, "before": "", "after": text})
        return {"changed": bool(names), "objects": names, "unserved": [], "missing": [], "diff": diff}

    def _gpushare_cluster_identity(self, arguments: Json) -> Json:
        due = {host: "it has no token" for host, own in arguments["tokens"].items() if not own}
        return {"changed": False, "kubeconfig": "x" * 2500, "due": due, "seeds": dict.fromkeys(due, "t" * 1000)}

    def _gpushare_cluster_remove_objects(self, arguments: Json) -> Json:
        gone = [key for key in self._there if key.startswith("object ")]
        for key in gone:
            del self._there[key]
        return {"changed": bool(gone), "removed": [key.partition(" ")[2] for key in gone], "left": [], "diff": []}

    def _gpushare_verify_cluster_evidence(self, arguments: Json) -> Json:
        prepared, planes = self._world.prepared, [name for name in self._world.names if name.startswith("cp")]
        pods = []
        for name in arguments["nodes"]:
            pod = self._mine(prepared["pod"], name)
            pod |= {"name": f"sharing-{name}", "uid": f"uid-of-{name}"}
            pod["running"][0] |= {"id": self._container(name=name), "started": time.time() - 600}
            pods.append(pod)
        cluster = {
            **self._mine(prepared["cluster"], planes[0]),
            "nodes": [self._mine(prepared["node"], name) for name in arguments["nodes"]],
            "pods": pods,
            "schedulers": {plane: self._mine(prepared["mirror"], plane) for plane in arguments.get("schedulers", planes)},
        }
        return {"changed": False, "seen": cluster}

    def _gpushare_verify_cluster_place(self, arguments: Json) -> Json:
        (self._world.folder / _STATE / "probes").touch()
        pods = {}
        for name in arguments["images"]:
            pod = self._mine(self._world.prepared["pod"], name)
            pod |= {"name": f"gpushare-verify-{name}", "uid": f"probe-of-{name}", "probe": True, "changed": []}
            pod["annotations"] = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {"1": 1}}), "ALIYUN_COM_GPU_MEM_IDX": "1"}
            pod["containers"][0]["units"] = 1
            pod["running"][0] |= {"id": self._container("f", name), "started": time.time() - 1}
            pods[name] = pod
        return {"changed": True, "pods": pods, "removed": []}

    def _gpushare_verify_cluster_remove(self, arguments: Json) -> Json:
        (self._world.folder / _STATE / "probes").unlink(missing_ok=True)
        return {"changed": True, "removed": []}

    def _kube_scheduler_extender(self, arguments: Json) -> Json:
        start = self._world.prepared["settled" if self._settled else "scheduler"]
        plan: Json = arguments["plan"]
        found: Json = {"scheduler": start, **self._there}["scheduler"]
        settings = {**self._world.prepared["settings"], **{key: value for key, value in arguments.items() if not key.startswith("_")}}
        for name in ("weight", "percentage_of_nodes_to_score", "control_planes"):
            settings[name] = int(settings[name])
        settings["preemption"] = settings["preemption"] in (True, "True", "true")
        if "files" not in plan:
            return {"changed": False, "settings": {name: settings[name] for name in self._world.prepared["settings"]}, **found}
        if plan.get("trial"):
            return {"changed": False, "candidate": "it starts"}
        found = json.loads(json.dumps(found))
        for one in plan["files"]:
            self._note(found, one["path"], found["files"].get(one["path"]), one["content"])
            found["files"][one["path"]] = one["content"]
        for path, before, after in plan["values"]:
            self._note(found, path, before, after)
        if plan["cluster"] is not None:
            self._note(found, self._world.prepared["cluster_path"], found["cluster"]["text"], plan["cluster"]["content"])
            found["cluster"] = {"text": plan["cluster"]["content"], "version": "43"}
        manifest = found["files"][settings["manifest"]]
        found["running"] = plan["shapes"][hashlib.sha256(manifest.encode()).hexdigest()]
        if arguments.get("state") == "absent":
            found["journal"] = []
        self._there["scheduler"] = found
        return {"changed": True, "candidate": "it starts", "holder": "", "standby": False}

    @staticmethod
    def _note(found: Json, path: str, before: str | None, after: str | None) -> None:
        if before == after:
            return
        left = ["" if text is None else hashlib.sha256(text.encode()).hexdigest() for text in (before, after)]
        known = {entry["path"]: entry for entry in found["journal"]}
        original = known[path]["original"] if path in known else before
        entry = {"path": path, "original": original, "mode": None if original is None else 0o644, "left": left, "others": False}
        found["journal"] = [*(one for name, one in known.items() if name != path), entry]


def main() -> None:
    """As the Python of the host whose address ssh was called at."""
    folder = Path(__file__).resolve().parent
    addresses: dict[str, str] = json.loads((folder / "addresses.json").read_text())
    host = addresses[os.environ["SSH_CONNECTION"].split()[2]]
    sys.stdout.write(world(folder).answer(host, sys.stdin.buffer.read()).decode())


if __name__ == "__main__":
    main()
