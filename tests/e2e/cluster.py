# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A lab's cluster as tests and the demo see it: API, kubectl, commands on nodes, waiting, and what containers really have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from e2e.api import Api, ApiError, Json
from gpushare_lab import cluster as lab_cluster
from gpushare_lab import nodes as lab_nodes
from gpushare_lab import state as lab_state
from gpushare_lab.process import LabError
from results import reserved_keys
from timeline import span

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLES = REPOSITORY / "docs/use/samples"
LAB = REPOSITORY / "tools/lab/lab"
LONG_LAB_COMMANDS = {"up", "down", "save", "restore", "upgrade"}

MEMORY = "aliyun.com/gpu-mem"
GPUS = "aliyun.com/gpu-count"
CORE = "aliyun.com/gpu-core.percentage"
#: For nodes whose kubelet has another --root-dir than its default, as on a disk for data.
OTHER_KUBELET_ROOT = "/data/kubelet"
CONTROL_PLANE = "cp1"
GPU_NODES = ("gpu1", "gpu2")

T = TypeVar("T")


class CommandError(AssertionError):
    """A command that failed, with what it said."""


class WaitedInVain(AssertionError):
    """A condition that did not come within its deadline, with the relevant logs."""


@dataclass(frozen=True)
class RealGpu:
    """One GPU as the driver on the node knows it, read by nvidia-smi."""

    index: int
    uuid: str
    minor: int
    mib: int


@dataclass(frozen=True)
class Container:
    """One container of a running pod, seen from outside: /dev and environment of its first process."""

    pod: Json
    spec: Json
    devices: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.pod['metadata']['name']}/{self.spec['name']} on {self.pod['spec']['nodeName']}"


class Cluster:
    """The instance of the lab of that name, which is up."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def kubeconfig(self) -> Path:
        return Path(self.lab("kubeconfig").strip())

    @cached_property
    def inventory(self) -> Path:
        return Path(self.lab("inventory").strip())

    @cached_property
    def api(self) -> Api:
        return Api(self.kubeconfig)

    # Commands.

    def lab(self, *arguments: str, stdin: str | None = None, seconds: float = 120) -> str:
        """Standard output of `lab --name … arguments`; without a process of Python for what is called thousands of times."""
        if arguments[0] == "exec":
            return run([*self.entering(arguments[1]), *arguments[2:]], stdin=stdin, seconds=seconds)
        if arguments[0] == "kubectl":
            program = lab_cluster.kubectl_file(lab_state.existing(self.name))
            return run([str(program), "--kubeconfig", str(self.kubeconfig), *arguments[1:]], stdin=stdin, seconds=seconds)
        return run([sys.executable, str(LAB), "--name", self.name, *arguments], stdin=stdin, seconds=seconds)

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        return self.lab("kubectl", *arguments, stdin=stdin, seconds=seconds)

    def on(self, node: str, *command: str, seconds: float = 60) -> str:
        """Standard output of a command on a node."""
        return self.lab("exec", node, *command, seconds=seconds)

    def stop(self, node: str, daemon: str) -> None:
        """A daemon with its sockets: a call at one would start it again. A start of the daemon brings them back."""
        self.on(node, "systemctl", "stop", f"{daemon}*.socket", daemon)

    def move_kubelets(self, *nodes: str) -> None:
        """Give the kubelets of these nodes, which have no pods, the other --root-dir; what follows it leaves the default one."""
        stays = " ".join(
            f"! -name {name}" for name in ("config.yaml", "instance-config.yaml", "kubeadm-flags.env", "pki", "device-plugins")
        )
        script = f"""
            if grep -qs root-dir={OTHER_KUBELET_ROOT} /etc/default/kubelet; then exit; fi
            rmdir /var/lib/kubelet/pods
            systemctl stop kubelet
            find /var/lib/kubelet -mindepth 1 -maxdepth 1 {stays} -exec rm -rf {{}} +
            echo KUBELET_EXTRA_ARGS=--root-dir={OTHER_KUBELET_ROOT} > /etc/default/kubelet
            systemctl start kubelet
            until test -S {OTHER_KUBELET_ROOT}/pod-resources/kubelet.sock; do sleep 0.2; done
        """
        for node in nodes:
            self.on(node, "sh", "-ec", script)

    def playbook(self, *arguments: str, name: str = "site.yml", inventory: Path | None = None, seconds: float = 1800) -> str:
        """What `ansible-playbook` prints on this lab. inventory: another one than the lab's own."""
        environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        program = Path(sys.executable).with_name("ansible-playbook")
        hosts = str(inventory or self.inventory)
        return run([str(program), "-i", hosts, name, *arguments], seconds=seconds, environment=environment)

    def inspect(self, *arguments: str) -> str:
        """What `kubectl inspect gpushare` prints on the control plane, as it is installed there."""
        return self.on(CONTROL_PLANE, "env", "KUBECONFIG=/etc/kubernetes/admin.conf", "kubectl", "inspect", "gpushare", *arguments)

    def entering(self, node: str) -> list[str]:
        """What stands before a command to run it on a node."""
        try:
            return lab_nodes.entering(lab_state.existing(self.name), node)
        except LabError as error:
            raise CommandError(str(error)) from None

    def feed(self, node: str, *command: str, content: bytes = b"", seconds: float = 120) -> bytes:
        """Standard output of a command on a node that gets these bytes; CommandError with what it said when it fails."""
        done = subprocess.run([*self.entering(node), *command], input=content, capture_output=True, timeout=seconds, check=False)
        if done.returncode:
            said = done.stderr[-6000:].decode(errors="replace")
            raise CommandError(f"{' '.join(command)[:300]} on {node} with {len(content)} bytes\n  ended with {done.returncode}:\n{said}")
        return done.stdout

    # Objects.

    def nodes(self) -> list[Json]:
        return self.api.items("/api/v1/nodes")

    def node(self, name: str) -> Json:
        return self.api.get(f"/api/v1/nodes/{name}")

    def pods(self, namespace: str = "default") -> list[Json]:
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods")

    def pod(self, name: str, namespace: str = "default") -> Json:
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def create(self, pod: Json) -> Json:
        return self.api.create("/api/v1/namespaces/default/pods", pod)

    @contextmanager
    def created(self, manifest: Json, *, running: bool = True) -> Iterator[str]:
        """One pod more for a while; its name."""
        name: str = self.create(manifest)["metadata"]["name"]
        try:
            if running:
                self.until_running(name)
            yield name
        finally:
            self.delete(name)

    def annotate(self, path: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of an object; None removes one."""
        self.api.patch(path, {"metadata": {"annotations": annotations}})

    def switch_off(self, *nodes: str) -> None:
        """End nodes as a loss of power does, until they are off. `lab up` starts them."""
        for node in nodes:
            with suppress(CommandError):
                # The command ends with the node.
                self.on(node, "systemctl", "reboot", "--force", "--force")
        self.until("the nodes are off", lambda: not any(map(self._answers, nodes)), 60)

    def _answers(self, node: str) -> bool:
        try:
            self.on(node, "true")
        except CommandError:
            return False
        return True

    def publish_gpus(self, node: str, inventory: str) -> None:
        """In the place of a device plugin. inventory: as the annotation gpushare/gpus has it."""
        self.annotate(f"/api/v1/nodes/{node}", {"gpushare/gpus": inventory})

    def nodes_with_gpus(self) -> set[str]:
        """Those whose GPUs are known to who places pods."""
        # It stands on this file.
        from e2e.extender import ledgers

        return set(ledgers(self))

    def delete(self, *names: str) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            self.api.delete(f"/api/v1/namespaces/default/pods/{name}")
        self.until(f"pods {', '.join(names)} are gone", lambda: not {p["metadata"]["name"] for p in self.pods()} & set(names), 60)

    def clear(self) -> None:
        """Delete every Deployment and pod of the namespace default, and wait until they are gone."""
        self.api.delete("/apis/apps/v1/namespaces/default/deployments", propagationPolicy="Background")

        def gone() -> bool:
            # Again each time: a Deployment may have made another one meanwhile.
            self.api.delete("/api/v1/namespaces/default/pods")
            return not self.pods()

        self.until("no pod is left in the namespace default", gone, 90)
        self.until("no node holds back units of pods that are gone", lambda: not any(_held(n) for n in self.nodes()), 30)

    def events(self, pod: str) -> list[Json]:
        """The events of a pod, oldest first."""
        found = self.api.items("/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.name={pod}")
        return sorted(found, key=lambda event: event["metadata"]["creationTimestamp"])

    def log(self, pod: str) -> str:
        return self.kubectl("logs", pod)

    # Waiting.

    def until(self, what: str, probe: Callable[[], T | None], seconds: float, *pods: str) -> T:
        """Poll until `probe` returns something true; WaitedInVain with the logs, and what is said of `pods`, when it does not."""
        deadline = time.monotonic() + seconds
        with span("wait", what):
            while True:
                trouble = ""
                try:
                    if found := probe():
                        return found
                except (ApiError, OSError, CommandError, LookupError, ValueError) as error:
                    # What is asked about need not be there yet, and one that cannot be asked may answer later.
                    trouble = f"; the last attempt failed: {error!r}"
                if time.monotonic() > deadline:
                    raise WaitedInVain(f"waited {seconds:g} s until {what}{trouble}\n{self.story(pods)}")
                time.sleep(0.1)

    def until_running(self, *names: str, seconds: float = 60) -> list[Json]:
        """The pods once all of them run; it ends early when one has failed."""

        def probe() -> list[Json] | None:
            found = [pod for pod in self.pods() if pod["metadata"]["name"] in names]
            for pod in found:
                if pod["status"].get("phase") == "Failed":
                    name = pod["metadata"]["name"]
                    raise WaitedInVain(f"pod {name} has failed: {pod['status'].get('message', 'no message')}\n{self.story([name])}")
            return found if len(found) == len(names) and all(map(is_running, found)) else None

        return self.until(f"{', '.join(names)} run", probe, seconds, *names)

    def until_unschedulable(self, name: str, seconds: float = 30) -> str:
        """The reason for which the scheduler has not placed a pod."""
        return self.until(f"the scheduler says why {name} is not placed", lambda: unschedulable(self.pod(name)), seconds, name)

    def story(self, pods: Iterable[str] = ()) -> str:
        """What the pods say, and the ends of the logs that matter."""
        journal = ("journalctl", "--no-pager", "-o", "short-precise", "-n", "60", "-u")
        units = [
            (CONTROL_PLANE, "gpushare-extender"),
            *((node, unit) for node in GPU_NODES for unit in ("gpushare-device-plugin", "kubelet")),
        ]
        scheduler = ("logs", "-n", "kube-system", f"kube-scheduler-{CONTROL_PLANE}", "--tail=15")
        commands = {
            "kubectl get pods": partial(self.kubectl, "get", "pods", "-A", "-o", "wide"),
            **{f"kubectl describe pod {name}": partial(self.kubectl, "describe", "pod", name) for name in pods},
            **{f"{unit} on {node}": partial(self.on, node, *journal, unit) for node, unit in units},
            "kube-scheduler": partial(self.kubectl, *scheduler),
        }
        return "\n".join([*map(self._state, pods), *(_attempt(title, command) for title, command in commands.items())])

    def _state(self, name: str) -> str:
        try:
            pod = self.pod(name)
        except (ApiError, OSError) as error:
            return f"{name}: {error}"
        return f"{name} is {pod['status'].get('phase')}: {unschedulable(pod) or pod['status'].get('message') or 'no reason is given'}"

    # What is really there.

    def gpus(self, node: str) -> list[RealGpu]:
        """The GPUs of a node by the driver's word."""
        root = ElementTree.fromstring(self.on(node, "nvidia-smi", "-q", "-x"))
        return [
            RealGpu(
                index=index,
                uuid=_text(gpu, "uuid"),
                minor=int(_text(gpu, "minor_number")),
                mib=int(_text(gpu, "fb_memory_usage/total").split()[0]),
            )
            for index, gpu in enumerate(root.findall("gpu"))
        ]

    def containers(self, pods: Iterable[Json]) -> list[Container]:
        """What the containers of running pods have, looked at on their nodes; never asked of the container itself."""
        wanted: dict[str, dict[str, tuple[Json, Json]]] = {}
        for pod in pods:
            specs = {spec["name"]: spec for spec in pod["spec"]["containers"]}
            for status in pod["status"].get("containerStatuses", ()):
                identity = status.get("containerID", "").partition("://")[2]
                if identity and "running" in status["state"]:
                    wanted.setdefault(pod["spec"]["nodeName"], {})[identity] = (pod, specs[status["name"]])
        script = (Path(__file__).parent / "print_container_devices.py").read_text()
        found = []
        for node, of in wanted.items():
            seen = json.loads(self.on(node, "python3", "-c", script, *of))
            found += [Container(*of[i], tuple(seen[i]["devices"]), seen[i]["environment"]) for i in of]
        return found


def run(command: list[str], *, stdin: str | None = None, seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command; CommandError with all that it said when it fails or does not end in time."""
    shown = " ".join(command[:8]) + (" …" if len(command) > 8 else "")
    feed: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    kind = "playbook" if command[0].endswith("ansible-playbook") else "lab" if LONG_LAB_COMMANDS & set(command[:6]) else "command"
    try:
        with span(kind, shown):
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=REPOSITORY, env=environment, **feed)
    except subprocess.TimeoutExpired as error:
        # Bytes also where text was asked for.
        said = [(part or b"")[-6000:].decode(errors="replace") for part in (error.stdout, error.stderr)]
        raise CommandError("\n".join([shown, f"  did not end within {seconds:g} s; it said:", *said])) from None
    if done.returncode:
        # What failed first may be far from the end of a playbook's output.
        failed = "\n".join(line[:2000] for line in done.stdout.splitlines() if line.startswith(("fatal: ", "failed: ", "[ERROR]")))
        raise CommandError(f"{shown}\n  ended with {done.returncode}:\n{failed}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    if kind == "playbook" and (found := reserved_keys(done.stdout + done.stderr)):
        raise CommandError(f"{shown}\n  has results with keys that Ansible reserves: {found}")
    return str(done.stdout)


def container_id(pod: Json) -> str:
    """Of its first container, "" for none."""
    return str(pod["status"]["containerStatuses"][0].get("containerID", ""))


def is_running(pod: Json) -> bool:
    """Whether all containers run, and nobody is ending the pod."""
    statuses = pod["status"].get("containerStatuses", ())
    started = len(statuses) == len(pod["spec"]["containers"]) and all("running" in s["state"] for s in statuses)
    return started and pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def unschedulable(pod: Json) -> str:
    """Why the scheduler has not placed it; "" if it has, or has not tried yet."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def asked(container: Json, resource: str) -> int:
    """How much of a resource a container's limits say."""
    return int(container.get("resources", {}).get("limits", {}).get(resource, 0))


def annotations_of(thing: Json) -> Mapping[str, str]:
    found: Mapping[str, str] = thing["metadata"].get("annotations") or {}
    return found


def allocation(pod: Json) -> dict[int, int]:
    """Units per GPU index that the annotation of all containers together says; {} without one."""
    total: dict[int, int] = {}
    for gpus in json.loads(annotations_of(pod).get("scheduler.framework.gpushare.allocation", "{}")).values():
        for gpu, units in gpus.items():
            total[int(gpu)] = total.get(int(gpu), 0) + units
    return total


def uuids(text: str) -> list[str]:
    """Every GPU UUID in a text, in its order."""
    return re.findall(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)


def _held(node: Json) -> bool:
    held = json.loads(annotations_of(node).get("gpushare/held", "{}"))
    return any(held.get("gpus", {}).values())


def _text(element: ElementTree.Element, path: str) -> str:
    found = element.findtext(path)
    if found is None:
        raise AssertionError(f"nvidia-smi -q -x has no {path}")
    return found.strip()


def _attempt(title: str, command: Callable[[], str]) -> str:
    try:
        said = command()
    except CommandError as error:
        said = str(error)
    # kubelet says every second that it has no folder for static pods.
    lines = [line for line in said.splitlines() if "Unable to read config path" not in line]
    return "\n".join([f"--- {title}", *lines[-40:]])
