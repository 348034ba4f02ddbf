# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Plants faults on the lab's nodes and in its cluster for a while, and takes them away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.cluster import CONTROL_PLANE, MEMORY, Cluster
from e2e.manifests import pod

PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
PYTHON = "/opt/gpushare/current/bin/python"
HERE = Path(__file__).parent

Fault = Callable[[Cluster], "contextlib.AbstractContextManager[None]"]


def sh(cluster: Cluster, node: str, script: str, stdin: str | None = None) -> str:
    return cluster.lab("exec", node, "sh", "-ec", script, stdin=stdin)


def program(cluster: Cluster, node: str, name: str, *arguments: str) -> str:
    """Run a program of this folder with the runtime's Python on a node."""
    place = f"/run/gpushare-test-{name}"
    sh(cluster, node, f"cat > {place}", (HERE / name).read_text())
    return cluster.on(node, PYTHON, place, *arguments)


@contextlib.contextmanager
def changed(cluster: Cluster, node: str, path: str, script: str) -> Iterator[None]:
    """A file that a script changes, which gets it as $1; put back with its mode and owner."""
    sh(cluster, node, f"cp -p {path} /run/gpushare-test-kept; set -- {path}; {script}")
    try:
        yield
    finally:
        sh(cluster, node, f"cat /run/gpushare-test-kept > {path}")


@contextlib.contextmanager
def stopped(cluster: Cluster, node: str, unit: str) -> Iterator[None]:
    """The printed cure brings it back."""
    cluster.stop(node, unit)
    try:
        yield
    finally:
        cluster.on(node, "systemctl", "restart", unit)


@contextlib.contextmanager
def frozen_plugin(cluster: Cluster, node: str) -> Iterator[None]:
    """A device plugin that hangs and that nothing notices; the printed cure restarts it."""
    drop_in = f"/run/systemd/system/{PLUGIN}.service.d/90-test.conf"
    sh(cluster, node, f"mkdir -p $(dirname {drop_in}); printf '[Service]\\nWatchdogSec=0\\n' > {drop_in}")
    sh(cluster, node, f"systemctl daemon-reload; systemctl restart {PLUGIN}")
    cluster.until("the plugin is registered again", lambda: allocatable(cluster, node, MEMORY) > 0, 60)
    sh(cluster, node, f"kill -STOP $(systemctl show -P MainPID {PLUGIN})")
    try:
        yield
    finally:
        sh(cluster, node, f"rm -r $(dirname {drop_in}); systemctl daemon-reload; systemctl restart {PLUGIN}")


def allocatable(cluster: Cluster, node: str, resource: str) -> int:
    return int(cluster.node(node)["status"]["allocatable"].get(resource, 0))


@contextlib.contextmanager
def scheduler_config(cluster: Cluster, change: str) -> Iterator[None]:
    """Another configuration, of which the manifest knows, so that kubelet restarts the scheduler with it. change: a sed script."""
    sh(cluster, CONTROL_PLANE, f"cp -p {MANIFEST} /run/test-manifest; cp -p {CONFIG} /run/test-config")
    noted = "gpushare.kubernetes/scheduler-config-sha256"
    put = (
        f"before=$(sha256sum {CONFIG} | cut -c1-64); sed -i '{change}' {CONFIG}; after=$(sha256sum {CONFIG} | cut -c1-64); "
        f'test "$before" != "$after"; sed "/{noted.replace("/", "[/]")}/s/[0-9a-f]\\{{64\\}}/$after/" {MANIFEST} > /run/test-new; '
        f"cp /run/test-new {MANIFEST}; echo $after"
    )
    sha = sh(cluster, CONTROL_PLANE, put).strip()
    try:
        until_scheduler(cluster, sha)
        yield
    finally:
        sh(cluster, CONTROL_PLANE, f"cp -p /run/test-config {CONFIG}; cp -p /run/test-manifest {MANIFEST}")
        until_scheduler(cluster, sh(cluster, CONTROL_PLANE, f"sha256sum {CONFIG} | cut -c1-64").strip())


def until_scheduler(cluster: Cluster, sha: str) -> None:
    """Until the scheduler with this configuration runs."""
    name = "gpushare.kubernetes/scheduler-config-sha256"

    def runs() -> bool:
        found = cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")
        states = [status["state"] for status in found["status"].get("containerStatuses", ())]
        return found["metadata"]["annotations"].get(name) == sha and bool(states) and "running" in states[0]

    cluster.until("the scheduler runs with its new configuration", runs, 90)


@contextlib.contextmanager
def unreachable(cluster: Cluster, node: str) -> Iterator[None]:
    """A host without sshd, and without the connections that Ansible keeps."""
    sh(cluster, node, "systemctl kill ssh; systemctl stop ssh")
    try:
        yield
    finally:
        cluster.on(node, "systemctl", "start", "ssh")


def extender_down(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return stopped(cluster, CONTROL_PLANE, EXTENDER)


@contextlib.contextmanager
def stale_scheduler_file(cluster: Cluster) -> Iterator[None]:
    """A manifest without our configuration, kept where kubelet runs it."""
    backup = f"{MANIFEST}.bak"
    sh(cluster, CONTROL_PLANE, f"sed '/--config=/d' {MANIFEST} > /run/backup.yaml; cp /run/backup.yaml {backup}")
    try:
        yield
    finally:
        sh(cluster, CONTROL_PLANE, f"rm {backup}")
        until_scheduler(cluster, sh(cluster, CONTROL_PLANE, f"sha256sum {CONFIG} | cut -c1-64").strip())


@contextlib.contextmanager
def second_plugin(cluster: Cluster) -> Iterator[None]:
    """Another plugin registers our resource again and again."""
    unit, node = "gpushare-test-second-plugin", "gpu2"
    sh(cluster, node, "cat > /run/second_plugin.py", (HERE / "second_plugin.py").read_text())
    packages = "export PYTHONPATH=$(echo /opt/gpushare/current/lib/python3*/site-packages)"
    run = f"{packages}; exec -a gpushare-device-plugin-v2 {PYTHON} /run/second_plugin.py {MEMORY}"
    cluster.on(node, "systemd-run", f"--unit={unit}", "--collect", "--property=Type=notify", "bash", "-c", run)
    try:
        yield
    finally:
        cluster.on(node, "systemctl", "stop", unit)
        cluster.on(node, "systemctl", "restart", PLUGIN)


@contextlib.contextmanager
def wrong_gpu_count(cluster: Cluster) -> Iterator[None]:
    """A third GPU that a plugin which hangs does not see."""
    with frozen_plugin(cluster, "gpu2"):
        cluster.lab("gpu", "gpu2", "--gpus", "16+24+8")
        try:
            yield
        finally:
            cluster.lab("gpu", "gpu2", "--gpus", "16+24")


@contextlib.contextmanager
def capacity_short(cluster: Cluster) -> Iterator[None]:
    """A kubelet that hangs, with a node that offers less than its GPUs have."""
    node = "gpu1"
    sh(cluster, node, "kill -STOP $(systemctl show -P MainPID kubelet)")
    try:
        units = allocatable(cluster, node, MEMORY) - 8
        status = {"capacity": {MEMORY: str(units)}, "allocatable": {MEMORY: str(units)}}
        cluster.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
        yield
    finally:
        sh(cluster, node, "kill -CONT $(systemctl show -P MainPID kubelet)")
        cluster.until("kubelet has corrected its node", lambda: allocatable(cluster, node, MEMORY) > units, 60)


@contextlib.contextmanager
def driver_mismatch(cluster: Cluster) -> Iterator[None]:
    """The driver's packages were upgraded and the module was not reloaded."""
    gpus = "/usr/local/lib/gpushare-lab/gpus.py"
    cluster.on("gpu1", "python3", gpus, "driver", "mismatch")
    try:
        yield
    finally:
        cluster.on("gpu1", "python3", gpus, "driver", "ok")


@contextlib.contextmanager
def certificate_expired(cluster: Cluster) -> Iterator[None]:
    """The extender's certificate ran out because the timer did not run; the printed cure renews it."""
    program(cluster, CONTROL_PLANE, "expire_certificate.py", "/etc/gpushare/pki")
    try:
        yield
    finally:
        cluster.on(CONTROL_PLANE, "systemctl", "start", "gpushare-pki.service")


@contextlib.contextmanager
def token_expired(cluster: Cluster) -> Iterator[None]:
    """A host that was off for longer than its token lives; the printed cure, site.yml, repairs it."""
    program(cluster, "gpu1", "expire_tokens.py", "/var/lib/gpushare-device-plugin/token", "/etc/gpushare/device-plugin.token")
    cluster.on("gpu1", "systemctl", "restart", PLUGIN)
    try:
        yield
    finally:
        cluster.playbook()


OWN, SEED = f"/var/lib/{PLUGIN}/token", "/etc/gpushare/device-plugin.token"


@contextlib.contextmanager
def token_unreadable(cluster: Cluster) -> Iterator[None]:
    """Tokens that were copied with another owner: a plugin without root's powers cannot read them. The printed cure, word for word."""
    sh(cluster, "gpu1", f"chown 65534 {OWN} {SEED}; systemctl restart {PLUGIN}")
    try:
        yield
    finally:
        for path in (OWN, SEED):
            sh(cluster, "gpu1", f"chown 0 {path}; chmod 0600 {path}; systemctl restart {PLUGIN}")


def token_exposed(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return mode_of(cluster, "gpu1", OWN, "0644", "0600")


@contextlib.contextmanager
def mode_of(cluster: Cluster, node: str, path: str, mode: str, before: str) -> Iterator[None]:
    cluster.on(node, "chmod", mode, path)
    try:
        yield
    finally:
        cluster.on(node, "chmod", before, path)


@contextlib.contextmanager
def token_foreign(cluster: Cluster) -> Iterator[None]:
    """The token of another node's plugin; the printed cure removes it, and site.yml gives a fresh one."""
    sh(cluster, "gpu1", f"cat > {OWN}; systemctl restart {PLUGIN}", cluster.on("gpu2", "cat", OWN))
    try:
        yield
    finally:
        cluster.on("gpu1", "rm", OWN)
        cluster.playbook()


@contextlib.contextmanager
def plugin_not_synced(cluster: Cluster) -> Iterator[None]:
    """A kubeconfig with an API server that does not answer; the printed cure, site.yml, writes it anew."""
    sh(
        cluster,
        "gpu1",
        f"sed -i 's#server: .*#server: https://127.0.0.1:9#' /etc/gpushare/device-plugin.kubeconfig; systemctl restart {PLUGIN}",
    )
    try:
        yield
    finally:
        cluster.playbook()


@contextlib.contextmanager
def state_not_kept(cluster: Cluster) -> Iterator[None]:
    folder = f"/var/lib/{PLUGIN}"
    sh(cluster, "gpu1", f"mount --bind {folder} {folder}; mount -o remount,bind,ro {folder}")
    try:
        yield
    finally:
        cluster.on("gpu1", "umount", folder)


def extender_not_called(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return scheduler_config(cluster, f"s#name: {MEMORY}$#name: {MEMORY}ory#")


def extender_ignorable(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    """Pods with GPUs are placed without the extender while it is down."""
    return scheduler_config(cluster, "s#ignorable: false#ignorable: true#")


def extender_impatient(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return scheduler_config(cluster, "s#httpTimeout: .*#httpTimeout: 1ms#")


def files_changed(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    """The next restart would evict pods."""
    return changed(cluster, "gpu1", f"/etc/gpushare/{PLUGIN}.env", "sed -i 's/--overuse report/--overuse evict/' $1; grep -q evict $1")


@contextlib.contextmanager
def unit_overridden(cluster: Cluster) -> Iterator[None]:
    """A drop-in with another unit of memory, from the next daemon-reload on; the printed cure removes it."""
    drop_in, env = f"/etc/systemd/system/{PLUGIN}.service.d/50-mine.conf", f"/etc/gpushare/{PLUGIN}.env"
    command = f"sed -n 's/^GPUSHARE_COMMAND=.\\(.*\\).$/ExecStart=\\1/p' {env} | sed 's/--memory-unit GiB/--memory-unit 256MiB/'"
    sh(
        cluster,
        "gpu1",
        f"mkdir -p $(dirname {drop_in}); (printf '[Service]\\nExecStart=\\n'; {command}) > {drop_in}; grep 256MiB {drop_in}",
    )
    try:
        yield
    finally:
        cluster.on("gpu1", "rm", drop_in)


def scheduler_older_than_file(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return changed(cluster, CONTROL_PLANE, CONFIG, "echo '# tuned by hand' >> $1")


def extender_address_wrong(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return scheduler_config(cluster, "s#\\(urlPrefix: .*127.0.0.1\\):[0-9]*#\\1:32767#")


@contextlib.contextmanager
def port_taken(cluster: Cluster) -> Iterator[None]:
    """An unprivileged user has the extender's address since it was stopped with its socket."""
    listen = 'import socket, time; one = socket.create_server(("127.0.0.1", 32766)); time.sleep(600)'
    unit = "gpushare-test-port"
    cluster.stop(CONTROL_PLANE, EXTENDER)
    cluster.on(CONTROL_PLANE, "systemd-run", f"--unit={unit}", "--collect", "--uid=65534", "python3", "-c", listen)
    cluster.until("the port is taken", lambda: ":32766" in cluster.on(CONTROL_PLANE, "sh", "-c", "ss -ltnH || cat /proc/net/tcp"), 60)
    sh(cluster, CONTROL_PLANE, f"systemctl start --no-block {EXTENDER}")
    try:
        yield
    finally:
        cluster.on(CONTROL_PLANE, "systemctl", "stop", unit)
        cluster.on(CONTROL_PLANE, "systemctl", "restart", EXTENDER)


def plugin_stopped(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return stopped(cluster, "gpu1", PLUGIN)


@contextlib.contextmanager
def plugin_not_registered(cluster: Cluster) -> Iterator[None]:
    """kubelet has restarted and the plugin, which hangs, does not notice."""
    with frozen_plugin(cluster, "gpu1"):
        cluster.on("gpu1", "systemctl", "restart", "kubelet")
        cluster.until("kubelet offers no units", lambda: allocatable(cluster, "gpu1", MEMORY) == 0, 60)
        yield


@contextlib.contextmanager
def default_runtime_not_running(cluster: Cluster) -> Iterator[None]:
    """containerd was started before its file said nvidia; the printed cure restarts it."""
    path = "/etc/containerd/config.toml"
    with changed(
        cluster, "gpu1", path, 'sed -i "s/default_runtime_name = .*/default_runtime_name = \\"runc\\"/" $1; ! grep -q "= .nvidia" $1'
    ):
        cluster.on("gpu1", "systemctl", "restart", "containerd")
    try:
        yield
    finally:
        cluster.on("gpu1", "systemctl", "restart", "containerd")


def cdi_stale(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return changed(cluster, "gpu2", "/run/cdi/nvidia.yaml", "sed -i 's/535[.]261[.]03/535.216.01/g' $1")


@contextlib.contextmanager
def deleted(cluster: Cluster, path: str) -> Iterator[None]:
    """An object of the API that is gone, and comes back as it was."""
    before = cluster.api.get(path)
    cluster.api.delete(path)
    try:
        yield
    finally:
        metadata = {key: before["metadata"][key] for key in ("name", "labels", "annotations") if key in before["metadata"]}
        body = json.dumps({**before, "metadata": metadata})
        cluster.kubectl("apply", "--server-side", "--field-manager=gpushare.kubernetes", "-f", "-", stdin=body)


def rbac_gone(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return deleted(cluster, f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{EXTENDER}")


def policy_gone(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    return deleted(cluster, "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/gpushare-annotations")


@contextlib.contextmanager
def label_gone(cluster: Cluster) -> Iterator[None]:
    """The printed cure labels the node."""
    cluster.kubectl("label", "node", "gpu2", "gpushare.kubernetes/node-")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", "gpu2", "gpushare.kubernetes/node=true")


def runtime_differs(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    path = "$(echo /opt/gpushare/current/lib/python3*/site-packages/gpushare_runtime/core/quantity.py)"
    return changed(cluster, "gpu1", path, "echo '# patched by hand' >> $1")


@contextlib.contextmanager
def gpu_without_request(cluster: Cluster) -> Iterator[None]:
    """A manifest that asks for nothing and takes a GPU by a volume of the host, on a node with the strategy volume-mounts."""
    uuid = cluster.gpus("gpu2")[1].uuid
    by_volumes = {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    name = cluster.create(pod("no-request", node="gpu2", environment=by_volumes, mounted=[uuid]))["metadata"]["name"]
    try:
        cluster.until_running(name)
        yield
    finally:
        cluster.delete(name)


@contextlib.contextmanager
def wrong_gpu(cluster: Cluster) -> Iterator[None]:
    """A manifest that asks for one GPU, and takes another by a volume of the host."""
    other = cluster.gpus("gpu2")[1].uuid
    name = cluster.create(pod("other-gpu", memory=1, node="gpu2", mounted=[other]))["metadata"]["name"]
    try:
        cluster.until_running(name)
        yield
    finally:
        cluster.delete(name)
