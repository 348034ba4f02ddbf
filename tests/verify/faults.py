# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Plants faults on the lab's nodes and in its cluster. The printed cures take them away.

later: gets what a cure does not undo, such as a stray program of the test; it is done after the cures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, GPU_NODES, MEMORY, Cluster
from e2e.manifests import pod

PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
CONTAINERD = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/zz-gpushare.toml"
PYTHON = "/opt/gpushare/current/bin/python"
OWN, SEED = f"/var/lib/{PLUGIN}/token", "/etc/gpushare/device-plugin.token"
GPUS_PY = "/usr/local/lib/gpushare-lab/gpus.py"
HERE = Path(__file__).parent

Fault = Callable[[Cluster, contextlib.ExitStack], None]


def sh(cluster: Cluster, node: str, script: str, stdin: str | None = None) -> str:
    return cluster.lab("exec", node, "sh", "-ec", script, stdin=stdin)


def program(cluster: Cluster, node: str, name: str, *arguments: str) -> str:
    """Run a program of this folder with the runtime's Python on a node."""
    place = f"/run/gpushare-test-{name}"
    sh(cluster, node, f"cat > {place}", (HERE / name).read_text())
    return cluster.on(node, PYTHON, place, *arguments)


def kept(cluster: Cluster, later: contextlib.ExitStack, node: str, path: str) -> None:
    """A file that is put back with its mode and owner when all is over."""
    copy = f"/run/gpushare-test-kept-{path.replace('/', '-')}"
    sh(cluster, node, f"cp -p {path} {copy}")
    later.callback(sh, cluster, node, f"cp -p {copy} {path}")


def frozen_plugin(cluster: Cluster, later: contextlib.ExitStack, node: str) -> None:
    """A device plugin that hangs and that nothing notices."""
    drop_in = f"/run/systemd/system/{PLUGIN}.service.d/90-test.conf"
    later.callback(sh, cluster, node, f"rm -r $(dirname {drop_in}); systemctl daemon-reload; systemctl restart {PLUGIN}")
    sh(cluster, node, f"mkdir -p $(dirname {drop_in}); printf '[Service]\\nWatchdogSec=0\\n' > {drop_in}")
    sh(cluster, node, f"systemctl daemon-reload; systemctl restart {PLUGIN}")
    cluster.until("the plugin is registered again", lambda: allocatable(cluster, node, MEMORY) > 0, 60)
    sh(cluster, node, f"kill -STOP $(systemctl show -P MainPID {PLUGIN})")


def allocatable(cluster: Cluster, node: str, resource: str) -> int:
    return int(cluster.node(node)["status"]["allocatable"].get(resource, 0))


def scheduler_config(cluster: Cluster, change: str) -> None:
    """Another configuration, of which the manifest knows, so that kubelet restarts the scheduler with it. change: a sed script."""
    noted = "gpushare.kubernetes/scheduler-config-sha256"
    put = (
        f"before=$(sha256sum {CONFIG} | cut -c1-64); sed -i '{change}' {CONFIG}; after=$(sha256sum {CONFIG} | cut -c1-64); "
        f'test "$before" != "$after"; sed "/{noted.replace("/", "[/]")}/s/[0-9a-f]\\{{64\\}}/$after/" {MANIFEST} > /run/test-new; '
        f"cp /run/test-new {MANIFEST}; echo $after"
    )
    until_scheduler(cluster, sh(cluster, CONTROL_PLANE, put).strip())


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


# Daemons.


def extender_down(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.stop(CONTROL_PLANE, EXTENDER)


def extender_unheard(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A packet filter that drops what comes to its port; the process is well."""
    rule = "INPUT -p tcp --dport 32766 -j DROP"
    later.callback(sh, cluster, CONTROL_PLANE, f"while iptables -D {rule} 2>/dev/null; do :; done")
    sh(cluster, CONTROL_PLANE, f"iptables -I {rule}")


def filter_removed(cluster: Cluster) -> None:
    sh(cluster, CONTROL_PLANE, "iptables -D INPUT -p tcp --dport 32766 -j DROP")


def port_taken(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """An unprivileged user has the extender's address since it was stopped with its socket."""
    listen = 'import socket, time; one = socket.create_server(("127.0.0.1", 32766)); time.sleep(600)'
    cluster.stop(CONTROL_PLANE, EXTENDER)
    cluster.on(CONTROL_PLANE, "systemd-run", "--unit=gpushare-test-port", "--collect", "--uid=65534", "python3", "-c", listen)
    later.callback(sh, cluster, CONTROL_PLANE, "systemctl stop gpushare-test-port 2>/dev/null || :")
    cluster.until("the port is taken", lambda: ":32766" in cluster.on(CONTROL_PLANE, "sh", "-c", "ss -ltnH || cat /proc/net/tcp"), 60)
    sh(cluster, CONTROL_PLANE, f"systemctl start --no-block {EXTENDER}")


def listener_ended(cluster: Cluster) -> None:
    """As the cure names it."""
    listed = sh(cluster, CONTROL_PLANE, "ss -ltnp 'sport = :32766'")
    pid = listed.partition("pid=")[2].partition(",")[0]
    sh(cluster, CONTROL_PLANE, f"kill {int(pid)}")


def plugin_stopped(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.stop("gpu1", PLUGIN)


def plugin_not_registered(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """kubelet has restarted and the plugin, which hangs, does not notice."""
    frozen_plugin(cluster, later, "gpu1")
    cluster.on("gpu1", "systemctl", "restart", "kubelet")
    cluster.until("kubelet offers no units", lambda: allocatable(cluster, "gpu1", MEMORY) == 0, 60)


def plugin_missing(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu1", "rm", f"/etc/systemd/system/{PLUGIN}.service")


def second_plugin(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Another plugin registers our resource again and again."""
    unit, node = "gpushare-test-second-plugin", "gpu2"
    sh(cluster, node, "cat > /run/second_plugin.py", (HERE / "second_plugin.py").read_text())
    packages = "export PYTHONPATH=$(echo /opt/gpushare/current/lib/python3*/site-packages)"
    run = f"{packages}; exec -a gpushare-device-plugin-v2 {PYTHON} /run/second_plugin.py {MEMORY}"
    later.callback(sh, cluster, node, f"systemctl stop {unit} 2>/dev/null || :")
    cluster.on(node, "systemd-run", f"--unit={unit}", "--collect", "--property=Type=notify", "bash", "-c", run)


def second_plugin_stopped(cluster: Cluster) -> None:
    cluster.on("gpu2", "systemctl", "stop", "gpushare-test-second-plugin")


def wrong_gpu_count(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A third GPU that a plugin which hangs does not see."""
    frozen_plugin(cluster, later, "gpu2")
    later.callback(cluster.lab, "gpu", "gpu2", "--gpus", "16+24")
    cluster.lab("gpu", "gpu2", "--gpus", "16+24+8")


def capacity_short(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A kubelet that hangs, with a node that offers less than its GPUs have."""
    node = "gpu1"
    sh(cluster, node, "kill -STOP $(systemctl show -P MainPID kubelet)")
    later.callback(sh, cluster, node, "kill -CONT $(systemctl show -P MainPID kubelet)")
    units = allocatable(cluster, node, MEMORY) - 8
    status = {"capacity": {MEMORY: str(units)}, "allocatable": {MEMORY: str(units)}}
    cluster.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})


def kubelet_stopped(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu1", "systemctl", "stop", "kubelet")


def kubelet_masked(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu1", "systemctl", "mask", "--now", "kubelet")


def plugin_hardened(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A security team's drop-in for all units of one prefix: without devices, and with less memory than the plugin needs."""
    folder = "/etc/systemd/system/gpushare-.service.d"
    settings = "[Service]\nPrivateDevices=yes\nMemoryMax=20M\n"
    sh(cluster, "gpu2", f"mkdir -p {folder}; cat > {folder}/10-hardening.conf", settings)
    sh(cluster, "gpu2", f"systemctl daemon-reload; systemctl restart --no-block {PLUGIN}")

    def fails() -> bool:
        return cluster.on("gpu2", "systemctl", "show", "-P", "NRestarts", PLUGIN).strip() not in ("", "0")

    cluster.until("the plugin does not stay", fails, 60)


def timer_off(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on(CONTROL_PLANE, "systemctl", "disable", "--now", "gpushare-pki.timer")


def runtime_silent(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu2", "systemctl", "stop", "containerd")


def plugin_not_at_boot(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu2", "systemctl", "disable", PLUGIN)


def extender_not_at_boot(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on(CONTROL_PLANE, "systemctl", "disable", EXTENDER)


# Driver, GPUs, container runtime.


def driver_mismatch(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """The driver's packages were upgraded and the module was not reloaded."""
    later.callback(driver_reloaded, cluster)
    cluster.on("gpu1", "python3", GPUS_PY, "driver", "mismatch")


def driver_reloaded(cluster: Cluster) -> None:
    cluster.on("gpu1", "python3", GPUS_PY, "driver", "ok")


def device_closed(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu2", "chmod", "0600", "/dev/nvidia1")


def gpu_cordoned(cluster: Cluster, later: contextlib.ExitStack) -> None:
    environment = ("env", "KUBECONFIG=/etc/kubernetes/admin.conf")
    cluster.on(CONTROL_PLANE, *environment, "kubectl", "gpushare", "cordon", "gpu2", "1")


def no_cgroups(cluster: Cluster, later: contextlib.ExitStack) -> None:
    kept(cluster, later, "gpu2", TOOLKIT)
    cluster.on("gpu2", "nvidia-ctk", "config", "--in-place", "--set", "nvidia-container-cli.no-cgroups=true")


def mounts_ignored(cluster: Cluster, later: contextlib.ExitStack) -> None:
    sh(cluster, "gpu2", f"sed -i '/as-volume-mounts/s/true/false/' {TOOLKIT}; grep -q 'as-volume-mounts = false' {TOOLKIT}")


def gpus_visible(cluster: Cluster, later: contextlib.ExitStack) -> None:
    sh(cluster, "gpu2", f"sed -i '/envvar-when-unprivileged/s/false/true/' {TOOLKIT}; grep -q 'unprivileged = true' {TOOLKIT}")


def default_runtime_not_running(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """containerd was started before its files said nvidia."""
    sh(cluster, "gpu2", f"mv {DROP_IN} /run/test-containerd; systemctl restart containerd; mv /run/test-containerd {DROP_IN}")


def default_runtime_missing(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Somebody's tool has written containerd's file anew."""
    sh(
        cluster,
        "gpu2",
        f"grep -q {DROP_IN.rpartition('/')[0]} {CONTAINERD}; sed -i '/^imports/d' {CONTAINERD}; systemctl restart containerd",
    )


MINE = "/etc/containerd/conf.d/zzz-mine.toml"


def cgroup_drivers_differ(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Somebody has given containerd the systemd driver, and not kubelet."""
    later.callback(cluster.on, "gpu2", "rm", "-f", MINE)
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]'
    sh(cluster, "gpu2", f"cat > {MINE}; systemctl restart containerd", f"version = 4\n{table}\nSystemdCgroup = true\n")


def cgroup_driver_set(cluster: Cluster) -> None:
    sh(cluster, "gpu2", f"sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' {MINE}")


def runtime_file_broken(cluster: Cluster, later: contextlib.ExitStack, node: str = "gpu1") -> None:
    kept(cluster, later, node, CONTAINERD)
    sh(cluster, node, f"cp -p {CONTAINERD} /run/test-broken; echo '[plugins' >> {CONTAINERD}")


def runtime_file_corrected(cluster: Cluster) -> None:
    """Only by its last line, as the message has it."""
    sh(cluster, "gpu1", f"sed -i '$d' {CONTAINERD}")


def cdi_stale(cluster: Cluster, later: contextlib.ExitStack) -> None:
    kept(cluster, later, "gpu1", "/run/cdi/nvidia.yaml")
    sh(cluster, "gpu1", "sed -i 's/535[.]261[.]03/535.216.01/g' /run/cdi/nvidia.yaml")


def cdi_missing(cluster: Cluster, later: contextlib.ExitStack) -> None:
    kept(cluster, later, "gpu1", "/run/cdi/nvidia.yaml")
    cluster.on("gpu1", "rm", "/run/cdi/nvidia.yaml")


def cdi_twice(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A second program has written a spec beside the toolkit's, on a node with the strategy volume-mounts."""
    later.callback(cluster.on, "gpu2", "rm", "-f", "/run/cdi/others.yaml")
    cluster.on("gpu2", "cp", "/run/cdi/nvidia.yaml", "/run/cdi/others.yaml")


# Not in /run, which another fault of the same draw may fill.
SANDBOX = "/var/tmp/test-sandbox.tar"


def sandbox_image_gone(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Every pause image, as a clean-up by hand takes them."""
    list_ = "ctr -n k8s.io images ls -q | grep /pause"
    sh(cluster, "gpu2", f"ctr -n k8s.io images export {SANDBOX} $({list_} | grep -v @); ctr -n k8s.io images rm --sync $({list_})")


def sandbox_image_back(cluster: Cluster) -> None:
    """The lab has no registry: by the second way that the cure names."""
    sh(cluster, "gpu2", f"ctr -n k8s.io images import {SANDBOX}; rm {SANDBOX}")


def run_full(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Where the runtime makes the state of each container."""
    later.callback(cluster.on, "gpu1", "rm", "-f", "/run/test-filler")
    sh(cluster, "gpu1", "fallocate -l $(df --output=avail -B1 /run | tail -1) /run/test-filler")


def run_emptied(cluster: Cluster) -> None:
    cluster.on("gpu1", "rm", "/run/test-filler")


# Tokens, certificates, rights, state.


def files_exposed(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A restored backup with the number of another user."""
    sh(cluster, CONTROL_PLANE, "chown -R 65534 /etc/gpushare; chown 0 /etc/gpushare/*.token")


def state_exposed(cluster: Cluster, later: contextlib.ExitStack) -> None:
    sh(cluster, "gpu1", f"chmod 0777 $(dirname {OWN})")


def certificate_expired(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """The extender's certificate ran out because the timer did not run."""
    program(cluster, CONTROL_PLANE, "expire_certificate.py", "/etc/gpushare/pki")


def certificate_wrong(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Of another authority."""
    make = (
        "cd /etc/gpushare/pki; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 90 -subj /CN=other "
        "-keyout /run/test-other.key -out /run/test-other.crt 2>/dev/null; cat /run/test-other.crt > extender.crt"
    )
    sh(cluster, CONTROL_PLANE, make)


def token_expired(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A host that was off for longer than its token lives."""
    program(cluster, "gpu1", "expire_tokens.py", OWN, SEED)
    cluster.on("gpu1", "systemctl", "restart", PLUGIN)


def token_unreadable(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Tokens that were copied with another owner: a plugin without root's powers cannot read them."""
    sh(cluster, "gpu1", f"chown 65534 {OWN} {SEED}; systemctl restart {PLUGIN}")


def token_exposed(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.on("gpu2", "chmod", "0644", OWN)


def token_foreign(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """The tokens of another node's plugin. With a good one in one of the files the plugin would help itself."""
    sh(cluster, "gpu1", f"cat > {OWN}; cat {OWN} > {SEED}; systemctl restart {PLUGIN}", cluster.on("gpu2", "cat", OWN))


def token_missing(cluster: Cluster, later: contextlib.ExitStack) -> None:
    sh(cluster, "gpu2", f"rm {OWN} {SEED}; systemctl restart {PLUGIN}")


def plugin_not_synced(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A kubeconfig with an API server that does not answer."""
    other = 's#"server": "[^"]*"#"server": "https://127.0.0.1:9"#'
    sh(cluster, "gpu1", f"sed -i '{other}' /etc/gpushare/device-plugin.kubeconfig; systemctl restart {PLUGIN}")


def state_not_kept(cluster: Cluster, later: contextlib.ExitStack) -> None:
    folder = f"/var/lib/{PLUGIN}"
    later.callback(cluster.on, "gpu1", "umount", folder)
    sh(cluster, "gpu1", f"mount --bind {folder} {folder}; mount -o remount,bind,ro {folder}")


def rbac_gone(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.api.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{EXTENDER}")


def policy_gone(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.api.delete("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/gpushare-annotations")


def policy_audits(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A binding that denies nothing any more."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/gpushare-annotations"
    cluster.api.patch(path, {"spec": {"validationActions": ["Audit"]}})


def label_gone(cluster: Cluster, later: contextlib.ExitStack) -> None:
    cluster.kubectl("label", "node", "gpu2", "gpushare.kubernetes/node-")


# The scheduler.


def stale_scheduler_file(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A manifest without our configuration, kept where kubelet runs it."""
    backup = f"{MANIFEST}.bak"
    sh(cluster, CONTROL_PLANE, f"sed '/--config=/d' {MANIFEST} > /run/backup.yaml; cp /run/backup.yaml {backup}")


def extender_not_called(cluster: Cluster, later: contextlib.ExitStack) -> None:
    scheduler_config(cluster, f"s#name: {MEMORY}$#name: {MEMORY}ory#")


def extender_entry_differs(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Pods with GPUs are placed without the extender while it is down, and it has a millisecond for its answer."""
    scheduler_config(cluster, "s#ignorable: false#ignorable: true#; s#httpTimeout: .*#httpTimeout: 1ms#")


def extender_address_wrong(cluster: Cluster, later: contextlib.ExitStack) -> None:
    scheduler_config(cluster, "s#\\(urlPrefix: .*127.0.0.1\\):[0-9]*#\\1:32767#")


def scheduler_older_than_file(cluster: Cluster, later: contextlib.ExitStack) -> None:
    sh(cluster, CONTROL_PLANE, f"echo '# tuned by hand' >> {CONFIG}")


def scheduler_not_configured(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """As `kubeadm upgrade` writes it without our patch."""
    sh(cluster, CONTROL_PLANE, f"sed '/--config=/d' {MANIFEST} > /run/test-new; cp /run/test-new {MANIFEST}")


def extender_of_others(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """An entry that a removed program has left."""
    kept(cluster, later, CONTROL_PLANE, CONFIG)
    entry = "- urlPrefix: http://127.0.0.1:9\\n  filterVerb: filter"
    sh(cluster, CONTROL_PLANE, f"sed -i 's#^extenders:$#&\\n{entry}#' {CONFIG}; grep -q 127.0.0.1:9$ {CONFIG}")


def entry_removed(cluster: Cluster) -> None:
    sh(cluster, CONTROL_PLANE, f"sed -i '/^- urlPrefix: http:..127.0.0.1:9$/,+1d' {CONFIG}")


WEBHOOK = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
BINDS: Json = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}


def webhook_silent(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """Of a program whose pods are gone."""
    client = {"service": {"namespace": "default", "name": "gone", "path": "/"}}
    hook = {"name": "check.example.com", "rules": [BINDS], "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    cluster.api.create(WEBHOOK, {"metadata": {"name": "theirs"}, "webhooks": [hook]})


def bindings_changed(cluster: Cluster, later: contextlib.ExitStack) -> None:
    change = {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": 'Object{metadata: Object.metadata{labels: {"a": "b"}}}'},
    }
    spec = {"matchConstraints": {"resourceRules": [BINDS]}, "reinvocationPolicy": "Never", "mutations": [change]}
    cluster.api.create(MUTATING, {"metadata": {"name": "theirs"}, "spec": spec})


def mutating_policy_removed(cluster: Cluster) -> None:
    cluster.api.delete(f"{MUTATING}/theirs")


API_SERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"


def policies_not_enforced(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """As a recipe of long ago has it."""
    added = r"s/^\( *\)- kube-apiserver$/&\n\1- --disable-admission-plugins=ValidatingAdmissionPolicy/"
    sh(
        cluster,
        CONTROL_PLANE,
        f"sed '{added}' {API_SERVER} > /run/test-new; grep -q disable-ad /run/test-new; cp /run/test-new {API_SERVER}",
    )
    _until_api_server(cluster, disabled=True)


def policies_enforced(cluster: Cluster) -> None:
    sh(cluster, CONTROL_PLANE, f"sed '/--disable-admission-plugins/d' {API_SERVER} > /run/test-new; cp /run/test-new {API_SERVER}")
    _until_api_server(cluster, disabled=False)


def _until_api_server(cluster: Cluster, *, disabled: bool) -> None:
    def runs() -> bool:
        found = cluster.pod(f"kube-apiserver-{CONTROL_PLANE}", "kube-system")
        words = [word for one in found["spec"]["containers"] for word in one["command"]]
        right = any("disable-admission-plugins" in word for word in words) == disabled
        return right and any("running" in status["state"] for status in found["status"].get("containerStatuses", ()))

    cluster.until("the API server runs with these plugins", runs, 180)


SCHEDULER_CONF = "/etc/kubernetes/scheduler.conf"


def scheduler_not_leading(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A scheduler that does not reach its API server, as after a change of its address."""
    kept(cluster, later, CONTROL_PLANE, SCHEDULER_CONF)
    sh(
        cluster,
        CONTROL_PLANE,
        f"cp -p {SCHEDULER_CONF} /run/test-right; sed -i 's#server: .*#server: https://127.0.0.1:9#' {SCHEDULER_CONF}",
    )
    sh(cluster, CONTROL_PLANE, "pkill -x kube-scheduler")
    time.sleep(70)  # Verify calls a Lease old after 60 s.


def scheduler_leads(cluster: Cluster, after: str = f"cp -p /run/test-right {SCHEDULER_CONF}; pkill -x kube-scheduler || true") -> None:
    """After these commands on the control plane."""
    sh(cluster, CONTROL_PLANE, after)

    def leads() -> bool:
        spec = cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler")["spec"]
        renewed = datetime.strptime(spec["renewTime"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        return (datetime.now(timezone.utc) - renewed).total_seconds() < 15

    cluster.until("a scheduler leads", leads, 180)


def scheduler_certificate(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """As in the last days of the year for which kubeadm has signed it."""
    program(cluster, CONTROL_PLANE, "age_kubeconfig.py", SCHEDULER_CONF, "/etc/kubernetes/pki", "5")


def scheduler_stopped(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A manifest with a flag that kube-scheduler does not know."""
    unknown = r"s/^\( *\)- kube-scheduler$/&\n\1- --no-such-flag=1/"
    sh(cluster, CONTROL_PLANE, f"sed '{unknown}' {MANIFEST} > /run/test-new; grep -q no-such /run/test-new; cp /run/test-new {MANIFEST}")

    def stopped() -> bool:
        found = cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")["status"].get("containerStatuses", ())
        return not any("running" in status["state"] for status in found) and any(status["restartCount"] for status in found)

    cluster.until("the scheduler does not start", stopped, 120)


def flag_removed(cluster: Cluster) -> None:
    """And waits, as the cure says."""
    sh(cluster, CONTROL_PLANE, f"sed '/--no-such-flag/d' {MANIFEST} > /run/test-new; cp /run/test-new {MANIFEST}")

    def runs() -> bool:
        found = cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")
        without = all("--no-such-flag=1" not in one["command"] for one in found["spec"]["containers"])
        return without and any("running" in status["state"] for status in found["status"].get("containerStatuses", ()))

    cluster.until("the scheduler runs without the flag", runs, 120)


# Files of ours.


def files_changed(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """The next restart would evict pods."""
    config = f"/etc/gpushare/{PLUGIN}.yaml"
    sh(cluster, "gpu2", f"sed -i 's/^overuse: .*/overuse: evict/' {config}; grep -q evict {config}")


def unit_overridden(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A drop-in with another unit of memory, from the next daemon-reload on."""
    drop_in, ours = f"/etc/systemd/system/{PLUGIN}.service.d/50-mine.conf", f"/etc/gpushare/{PLUGIN}"
    config = f"sed 's/^memoryUnit: .*/memoryUnit: 256MiB/' {ours}.yaml > /etc/gpushare-mine.yaml; grep 256MiB /etc/gpushare-mine.yaml"
    command = f"sed -n 's/^GPUSHARE_COMMAND=.\\(.*\\).$/ExecStart=\\1/p' {ours}.env | sed 's,{ours}.yaml,/etc/gpushare-mine.yaml,'"
    script = (
        f"{config}; mkdir -p $(dirname {drop_in}); (printf '[Service]\\nExecStart=\\n'; {command}) > {drop_in}; grep mine.yaml {drop_in}"
    )
    sh(cluster, "gpu2", script)


def runtime_differs(cluster: Cluster, later: contextlib.ExitStack) -> None:
    path = "$(echo /opt/gpushare/current/lib/python3*/site-packages/gpushare_runtime/core/quantity.py)"
    sh(cluster, "gpu2", f"echo '# patched by hand' >> {path}")


def runtime_missing(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A link to a folder that is gone."""
    cluster.on("gpu1", "ln", "-sfn", "/opt/gpushare/gone-1", "/opt/gpushare/current")


# Pods.


def gpu_without_request(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A manifest that asks for nothing and takes a GPU by a volume of the host, on a node with the strategy volume-mounts."""
    uuid = cluster.gpus("gpu2")[1].uuid
    by_volumes = {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    _run(cluster, pod("no-request", node="gpu2", environment=by_volumes, mounted=[uuid]))


def wrong_gpu(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A manifest that asks for one GPU, and takes another by a volume of the host."""
    _run(cluster, pod("other-gpu", memory=1, node="gpu2", mounted=[cluster.gpus("gpu2")[1].uuid]))


def other_scheduler(cluster: Cluster, later: contextlib.ExitStack) -> None:
    """A pod that another scheduler binds, without a call of the extender."""
    wants = pod("by-another", memory=1)
    wants["spec"]["schedulerName"] = "my-scheduler"
    cluster.create(wants)
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "by-another"}, "target": target}
    cluster.api.create("/api/v1/namespaces/default/pods/by-another/binding", binding)
    cluster.until_running("by-another")


@contextlib.contextmanager
def second_scheduler(cluster: Cluster) -> Iterator[None]:
    """One of its own pod, without an extender and without a Lease, places a pod while the cluster's is away, and runs on."""
    own = cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")["spec"]["containers"][0]
    mounts = [{"name": "kubeconfig", "mountPath": SCHEDULER_CONF, "readOnly": True}]
    command = ["kube-scheduler", f"--kubeconfig={SCHEDULER_CONF}", "--leader-elect=false"]
    container = {"name": "theirs", "image": own["image"], "imagePullPolicy": "Never", "command": command, "volumeMounts": mounts}
    spec = {
        "nodeName": CONTROL_PLANE,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "kubeconfig", "hostPath": {"path": SCHEDULER_CONF, "type": "File"}}],
    }
    pods = "/api/v1/namespaces/kube-system/pods"
    sh(cluster, CONTROL_PLANE, f"mv {MANIFEST} /run/test-scheduler.yaml")
    try:
        cluster.until("the scheduler is away", lambda: not sh(cluster, CONTROL_PLANE, "pgrep -x kube-scheduler || true").strip(), 60)
        cluster.api.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": spec})
        _run(cluster, pod("by-another", memory=1))
        scheduler_leads(cluster, f"mv /run/test-scheduler.yaml {MANIFEST}")
        yield
    finally:
        sh(cluster, CONTROL_PLANE, f"test -e {MANIFEST} || mv /run/test-scheduler.yaml {MANIFEST}")
        cluster.api.delete(f"{pods}/theirs")
        pods_deleted(cluster)


def _run(cluster: Cluster, wanted: Json) -> None:
    cluster.until_running(cluster.create(wanted)["metadata"]["name"])


def started_again(cluster: Cluster) -> None:
    """After a failed test: without these site.yml changes nothing."""
    pods_deleted(cluster)
    for node in GPU_NODES:
        cluster.on(node, "systemctl", "start", "containerd")
        cluster.on(node, "systemctl", "restart", "kubelet", PLUGIN)
    # site.yml builds the runtime anew where it is gone, not where it was changed.
    sh(cluster, "gpu2", "rm -rf $(readlink -f /opt/gpushare/current)")


def pods_deleted(cluster: Cluster) -> None:
    """Those that a fault has made, so that their owner would make them anew from a corrected manifest."""
    there = {one["metadata"]["name"] for one in cluster.pods()}
    cluster.delete(*(name for name in ("no-request", "other-gpu", "by-another") if name in there))
