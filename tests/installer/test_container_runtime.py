# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role container_runtime on a real node: over ssh, with systemd, containerd, kubelet and pods."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import REPOSITORY, Cluster
from gpushare_lab.prepare import the_cache
from gpushare_lab.runtimes import CONTAINERDS, go_programs
from installer.shared import container_runtime
from timeline import span

NODE = "gpu1"
CONFIG = "/etc/containerd/config.toml"
SCRATCH = "/root/gpushare-test"
HERE = Path(__file__).parent
GATE = "/run/systemd/system/containerd.service.d/90-gpushare-test.conf"


class Node:
    """The GPU node, as a user's Ansible and its own tools see it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.inventory = cluster.lab("inventory").strip()

    def sh(self, script: str) -> str:
        return self.cluster.on(NODE, "sh", "-c", script)

    def ansible(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        command = [str(Path(sys.executable).with_name(program)), "-i", self.inventory, *arguments]
        with span("playbook", " ".join([program, *arguments[:6]])):
            return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False)

    def module(self, *options: str, check: bool = False) -> dict[str, Any]:
        return container_runtime(self.cluster, NODE, *options, check=check)

    def role(self, *arguments: str) -> str:
        """What the play with the role prints, warnings too; it must succeed."""
        answer = self.ansible("ansible-playbook", str(HERE / "container_runtime.yml"), *arguments)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout + answer.stderr

    def write(self, path: str, text: str) -> None:
        self.cluster.lab("exec", NODE, "sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)

    def copy(self, source: Path, path: str) -> None:
        """A program from this machine to the node."""
        command = self.cluster.entering(NODE)
        place = f"cat > {path}.new && chmod 755 {path}.new && mv {path}.new {path}"
        subprocess.run([*command, "sh", "-c", place], input=source.read_bytes(), check=True, timeout=120, capture_output=True)

    def config(self) -> str:
        return self.sh(f"cat {CONFIG}")

    def snapshot(self) -> str:
        """Every file that could have been written, with its times, and which containerd runs."""
        return self.sh("find /etc /var/lib/gpushare -printf '%p %y %m %U:%G %s %T@ %C@\\n' 2>/dev/null | sort; ls /tmp; pidof containerd")

    def default_runtime(self) -> str:
        """What the running containerd says."""
        self.ship()
        code = (
            "from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.cri import status;"
            "print(status('/run/containerd/containerd.sock').config['containerd']['defaultRuntimeName'])"
        )
        return self.sh(f'cd {SCRATCH} && python3 -c "{code}"').strip()

    def ship(self) -> None:
        """The module's core to the node, without Ansible."""
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            utils = "plugins/module_utils"
            archive.add(REPOSITORY / utils, f"ansible_collections/gpushare/kubernetes/{utils}", filter=without_caches)
            archive.add(HERE / "killed_at.py", "killed_at.py")
        command = self.cluster.entering(NODE)
        unpack = f"mkdir -p {SCRATCH} && tar -x -C {SCRATCH}"
        subprocess.run([*command, "sh", "-c", unpack], input=buffer.getvalue(), check=True, timeout=60, capture_output=True)

    def kill_at(self, victim: str, state: str = "present") -> list[str]:
        """Run the core and kill it at that point. The points that it passed."""
        self.ship()
        return self.sh(f"cd {SCRATCH} && python3 killed_at.py '{victim}' {state} 2>&1 || echo killed").splitlines()

    def gate(self, script: str) -> None:
        """Let containerd start only where the script ends well; "" for always."""
        if script:
            self.write(GATE, f"[Service]\nExecStartPre=/bin/sh -c '{script}'\n")
        else:
            self.sh(f"rm -f {GATE}")
        self.sh("systemctl daemon-reload")


def without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


@pytest.fixture
def node(bare: Cluster) -> Iterator[Node]:
    """The node without our change, and its bytes as they were again afterwards."""
    node = Node(bare)
    node.gate("")
    before = node.config()
    assert "nvidia" not in before
    yield node
    bare.clear()
    node.gate("")
    node.write(CONFIG, before)
    node.sh("rm -rf /etc/containerd/conf.d /var/lib/gpushare/journal; systemctl reset-failed containerd; systemctl restart containerd")
    bare.until("the node is ready", lambda: "True" in ready(bare), 60)


def ready(cluster: Cluster) -> str:
    return cluster.kubectl("get", "node", NODE, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")


def pod(cluster: Cluster, name: str, gpus: str) -> None:
    """gpus: "void", or the UUID of one: the nvidia runtime of the lab takes it from a mount only, as kubelet makes it."""
    container = {
        "name": "main",
        "image": "localhost/gpushare-lab/test:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "1000000"],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": gpus}],
        "volumeMounts": [{"name": "null", "mountPath": f"/var/run/nvidia-container-devices/{gpus}"}] if gpus != "void" else [],
    }
    volumes = [{"name": "null", "hostPath": {"path": "/dev/null"}}]
    spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


def container_of(cluster: Cluster, name: str) -> tuple[str, int]:
    """Which container a pod runs, and how often it was restarted."""
    status = cluster.pod(name)["status"]["containerStatuses"][0]
    assert status["state"].get("running"), status
    return status["containerID"], status["restartCount"]


def devices(cluster: Cluster, name: str) -> list[str]:
    return sorted(line for line in cluster.kubectl("exec", name, "--", "ls", "/dev").split() if line.startswith("nvidia"))


def test_from_an_untouched_host_to_pods_with_their_gpus_and_back(node: Node) -> None:
    cluster = node.cluster
    pod(cluster, "before", "void")
    running, original = container_of(cluster, "before"), node.config()

    untouched = node.snapshot()
    predicted = node.module(check=True)
    assert node.snapshot() == untouched
    assert (predicted["changed"], predicted["restarted"], predicted["files"]) == (True, True, [CONFIG])
    assert '+        BinaryName = "/usr/bin/nvidia-container-runtime"' in node.role("--check", "--diff")
    assert node.snapshot() == untouched

    assert "changed=1" in node.role()
    assert node.default_runtime() == "nvidia"
    assert container_of(cluster, "before") == running

    converged = node.snapshot()
    assert "changed=0" in node.role()
    assert node.module()["restarted"] is False
    assert node.snapshot() == converged

    uuid = node.sh("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()[1]
    pod(cluster, "with-a-gpu", uuid)
    pod(cluster, "without", "void")
    assert devices(cluster, "with-a-gpu") == ["nvidia1", "nvidiactl"]
    assert devices(cluster, "without") == []

    assert "changed=1" in node.role("-e", "gpushare_container_runtime_state=absent")
    assert node.config() == original
    assert node.default_runtime() == "runc"
    assert "changed=0" in node.role("-e", "gpushare_container_runtime_state=absent")
    assert container_of(cluster, "before") == running


def test_killed_at_any_point_the_next_run_finishes_and_no_container_ends(node: Node) -> None:
    cluster = node.cluster
    pod(cluster, "witness", "void")
    running, original = container_of(cluster, "witness"), node.config()
    points = node.kill_at("none")
    assert points == [f"before {CONFIG}", f"noted {CONFIG}", f"written {CONFIG}", "restarting", "restarted", "done"]
    new = node.config()
    for state, other, wanted, runtime in (("absent", "present", original, "runc"), ("present", "absent", new, "nvidia")):
        for victim in points:
            node.module(f"state={other}")
            assert node.config() == (new if wanted == original else original)
            assert node.kill_at(victim, state)[-1] == "killed"
            assert node.config() in (original, new)
            node.module(f"state={state}")
            assert node.config() == wanted, (victim, state)
            assert node.default_runtime() == runtime, (victim, state)
            assert node.module(f"state={state}", check=True)["changed"] is False
    assert container_of(cluster, "witness") == running


def test_a_containerd_that_does_not_start_with_the_change_gets_its_old_files_back(node: Node) -> None:
    before = node.config()
    node.gate(f'! grep -q nvidia {CONFIG} || {{ echo "containerd: no nvidia here"; exit 1; }}')
    answer = node.module()
    assert "containerd: no nvidia here" in answer["msg"]
    assert "what was there is restored" in answer["msg"]
    assert node.config() == before
    assert node.default_runtime() == "runc"
    assert node.sh("ls /var/lib/gpushare/journal") == ""


def test_what_a_killed_run_left_broken_is_put_back_by_the_next(node: Node) -> None:
    before = node.config()
    node.gate(f"! grep -q nvidia {CONFIG}")
    assert node.kill_at("restarting")[-1] == "killed"
    assert node.config() != before
    answer = node.module("timeout=15")
    assert "what was there before it is restored" in answer["msg"]
    assert node.config() == before
    assert node.default_runtime() == "runc"
    node.gate("")
    assert node.module()["changed"] is True
    assert node.default_runtime() == "nvidia"


def test_an_administrators_later_edit_stays_when_ours_is_taken_out(node: Node) -> None:
    before = node.config()
    node.module()
    edit = "  max_container_log_line_size = 32768\n  tolerate_missing_hugetlb_controller = true\n"
    node.write(CONFIG, node.config().replace("  tolerate_missing_hugetlb_controller = true\n", edit))
    assert "was changed after containerd was started" not in node.role("--check")
    assert "was changed after containerd was started" in node.role("--check", "-e", "gpushare_container_runtime_state=absent")
    answer = node.module("state=absent")
    assert answer["notes"] == [f"{CONFIG} was changed by others since: only our part is taken out"]
    assert node.config() == before.replace("  tolerate_missing_hugetlb_controller = true\n", edit)
    assert node.default_runtime() == "runc"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 2\n", "", "configuration version 1"),
        ("version = 2\n", 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n', "take it out"),
        ("version = 2\n", "version = 2\nbroken\n", "containerd --config /etc/containerd/config.toml config dump failed"),
        ("io.containerd.runc.v2", "io.containerd.kata.v2", "not run by runc"),
    ],
)
def test_what_cannot_be_right_is_rejected_before_anything_is_written(node: Node, old: str, new: str, message: str) -> None:
    node.write(CONFIG, node.config().replace(old, new, 1))
    before = node.snapshot()
    answer = node.module()
    assert answer["failed"]
    assert message in answer["msg"]
    assert node.snapshot() == before


def test_a_restart_that_would_end_containers_is_rejected_unless_allowed(node: Node) -> None:
    node.write(GATE, "[Service]\nKillMode=control-group\n")
    node.sh("systemctl daemon-reload")
    before = node.snapshot()
    assert "KillMode=control-group" in node.module()["msg"]
    assert node.snapshot() == before


def test_a_missing_program_is_rejected(node: Node) -> None:
    program = "program=/opt/nvidia-container-runtime"
    assert "install NVIDIA's container toolkit" in node.module(program)["msg"]
    # One that is there and does not work would break every pod.
    node.write("/opt/nvidia-container-runtime", "#!/bin/sh\necho no library >&2\nexit 127\n")
    node.sh("chmod +x /opt/nvidia-container-runtime")
    assert "does not work (no library)" in node.module(program)["msg"]
    node.sh("rm /opt/nvidia-container-runtime")


CONFIG_2 = """\
version = 3

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/cni/bin"]
"""


@pytest.fixture
def node_2(node: Node) -> Iterator[Node]:
    """The node with the containerd 2.x that the lab builds."""
    folder = go_programs(the_cache(), "containerd", CONTAINERDS["containerd-2.4"])
    sandbox = node.sh(f"sed -n 's/.*sandbox_image = \"\\(.*\\)\"/\\1/p' {CONFIG}").strip()
    for program in ("containerd", "containerd-shim-runc-v2", "ctr"):
        node.copy(folder / program, f"/usr/local/bin/{program}")
    node.write(CONFIG, CONFIG_2.format(sandbox=sandbox))
    node.write(GATE, "[Service]\nExecStart=\nExecStart=/usr/local/bin/containerd --config /etc/containerd/config.toml\n")
    node.sh("systemctl daemon-reload; systemctl restart containerd")
    yield node
    node.cluster.clear()
    node.sh("rm /usr/local/bin/containerd /usr/local/bin/containerd-shim-runc-v2 /usr/local/bin/ctr")


# Building containerd takes minutes where the lab's cache does not have it.
@pytest.mark.timeout(1800)
def test_containerd_2_gets_a_file_of_ours_and_one_import(node_2: Node) -> None:
    node, cluster = node_2, node_2.cluster
    cluster.until("the node is ready", lambda: "True" in ready(cluster), 60)
    pod(cluster, "before", "void")
    running, original = container_of(cluster, "before"), node.config()
    drop_in = "/etc/containerd/conf.d/zz-gpushare.toml"

    untouched = node.snapshot()
    predicted = node.module(check=True)
    assert node.snapshot() == untouched
    assert (predicted["restarted"], predicted["files"]) == (True, [drop_in, CONFIG])

    points = node.kill_at("none")
    assert points == [f"{moment} {path}" for moment in ("before", "noted", "written") for path in (drop_in, CONFIG)] + [
        "restarting",
        "restarted",
        "done",
    ]
    assert node.default_runtime() == "nvidia"
    assert node.config() == original.replace("version = 3\n", 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n', 1)
    converged = node.snapshot()
    assert node.module()["changed"] is False
    assert node.snapshot() == converged

    uuid = node.sh("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()[0]
    pod(cluster, "with-a-gpu", uuid)
    assert devices(cluster, "with-a-gpu") == ["nvidia0", "nvidiactl"]

    for victim in points:
        node.module("state=absent")
        assert node.config() == original
        assert node.sh("ls /etc/containerd").split() == ["config.toml"]
        assert node.kill_at(victim)[-1] == "killed"
        node.module()
        assert node.default_runtime() == "nvidia", victim
    for victim in node.kill_at("none", "absent"):
        node.module()
        assert node.kill_at(victim, "absent")[-1] == "killed"
        node.module("state=absent")
        assert node.default_runtime() == "runc", victim
        assert node.sh("cd /etc/containerd; find . -type f").split() == ["./config.toml"]
        assert node.config() == original
    assert container_of(cluster, "before") == running
