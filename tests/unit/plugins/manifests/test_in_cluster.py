# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The objects of an installation in the cluster: what pods may and may not, and that the programs know the arguments that they get."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any
from unittest import mock

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import foreign, key
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster import pods as tools
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import MARKERS
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._judge import in_cluster as judged
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import in_cluster, on_hosts, policies, workloads
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values, scheduler_image
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import COLLECTION, role_options, variables

import proof
from gpushare_runtime.core import protocol
from gpushare_runtime.dashboard.access import Hosts
from gpushare_runtime.dashboard.main import DashboardSettings, parse_arguments
from gpushare_runtime.device_plugin import options as plugin_options
from gpushare_runtime.dra.claims import CDI_FILE as CLAIMS_CDI_FILE
from gpushare_runtime.extender import options as extender_options
from gpushare_runtime.pki import main as pki
from image import layout

Json = dict[str, Any]
VALUES = Values(image="localhost/gpushare:1", scheduler_image="registry.k8s.io/kube-scheduler:v1.36.3")
SETS = (
    VALUES,
    replace(VALUES, namespace="kube-system", runtime_class="", mutating=False),
    replace(VALUES, namespace="gpushare-other", api_server="https://10.0.0.1:6443", overuse="evict"),
    replace(VALUES, settings={"gpuPlacement": "spread", "mostNodes": 5}),
    replace(VALUES, scheduler_on_gpu_nodes=True, metrics=True),
    replace(VALUES, prometheus="https://prometheus.monitoring:9090"),
    replace(VALUES, driver_root="/opt/driver", cdi_dir="/run/cdi", selinux_type="spc_t", runtime_class=""),
    replace(VALUES, device_strategy="volume-mounts", tolerations=[{"key": "a", "operator": "Exists"}], node_selector={"a/b": "true"}),
    replace(VALUES, isolation="driver", device_strategy="cdi", kubelet_root="/data/kubelet", preemption=False, policies=False),
)
BESIDE = replace(VALUES, default_scheduler=True)


def of(kind: str, values: Values = VALUES) -> Json:
    (found,) = (one for one in in_cluster.objects(values) if one["kind"] == kind)
    return found


def container(values: Values, name: str) -> Json:
    specs = [of(kind, values)["spec"]["template"]["spec"] for kind in ("Deployment", "DaemonSet")]
    (found,) = (one for spec in specs for one in spec["containers"] if one["name"] == name)
    return found


@pytest.mark.parametrize("backend", ["extender", "dra"])
def test_the_next_run_knows_what_an_apply_that_ended_after_any_object_has_left(backend: str) -> None:
    first = in_cluster.objects(replace(VALUES, backend=backend))[0]
    assert (first["kind"], MARKERS[first["metadata"]["name"]]) == ("ClusterRole", backend)


@pytest.mark.parametrize("values", SETS)
def test_the_module_applies_them_and_none_stands_there_twice(values: Values) -> None:
    made = in_cluster.objects(values)
    assert foreign(made, values.namespace) is None
    # Only where the daemons are pods.
    assert foreign(made) is not None
    assert len({key(one) for one in made}) == len(made)
    assert ("Namespace", "", "kube-system") not in {key(one) for one in made}


def test_the_module_applies_nothing_that_only_looks_like_one_of_them() -> None:
    binding = next(one for one in in_cluster.objects(VALUES) if one["kind"] == "ClusterRoleBinding")
    bad = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushare-x"}},
        {**of("Deployment"), "metadata": {"name": "gpushare-x", "namespace": "kube-system"}},
        {**binding, "roleRef": {**binding["roleRef"], "name": "cluster-admin"}},
    ]
    assert [one for one in bad if foreign([one], "gpushare-system") is None] == []


def config(template: Json, name: str, folder: Path) -> list[str]:
    """The command line of a daemon's container where kubelet has made the volumes of its pod."""
    spec = template["spec"]
    (daemon,) = (each for each in spec["containers"] if each["name"] == name)
    (word,) = daemon["args"]
    path = PurePath(word.removeprefix("--config="))
    (volume,) = (each["name"] for each in daemon["volumeMounts"] if each["mountPath"] == str(path.parent))
    (made,) = (each["projected"]["sources"][0]["downwardAPI"]["items"] for each in spec["volumes"] if each["name"] == volume)
    (item,) = made
    assert item["path"] == path.name
    (annotation,) = re.findall(r"metadata\.annotations\['(.+)'\]", item["fieldRef"]["fieldPath"])
    (folder / item["path"]).write_text(template["metadata"]["annotations"][annotation])
    return ["--config", str(folder / item["path"])]


def plugin_settings(template: Json, folder: Path) -> plugin_options.PluginSettings:
    with mock.patch.dict("os.environ", {"NODE_NAME": "gpu1"}):
        return plugin_options.parse_arguments(config(template, "device-plugin", folder))


def dashboard_settings(template: Json, folder: Path) -> DashboardSettings:
    return parse_arguments(config(template, "dashboard", folder))


def extender_settings(template: Json, folder: Path) -> extender_options.ExtenderSettings:
    return extender_options.parse_arguments(config(template, "extender", folder))


@pytest.mark.parametrize("values", [*SETS, replace(VALUES, overuse_grace=90)])
def test_the_programs_know_their_arguments(values: Values, tmp_path: Path) -> None:
    plugin = plugin_settings(of("DaemonSet", values)["spec"]["template"], tmp_path)
    assert (plugin.unit.name, plugin.overuse, plugin.overuse_grace) == (values.memory_unit, values.overuse, values.overuse_grace)
    assert plugin.isolation == ("watch" if values.isolation == "auto" else values.isolation)
    assert (plugin.node, str(plugin.kubelet_root), plugin.in_container) == ("gpu1", values.kubelet_root, True)
    assert str(plugin.device_plugins_dir) == "/var/lib/kubelet/device-plugins"
    assert (str(plugin.cgroup_root), str(plugin.dev_root), str(plugin.state)) == (
        "/host/sys/fs/cgroup",
        "/host/dev",
        workloads.STATE_FOLDER,
    )
    assert (plugin.choose, str(plugin.cdi_dir or "")) == (values.device_strategy == "auto", values.cdi_dir if values.writes_cdi else "")
    assert (plugin.driver_root, plugin.runtime_class) == (values.driver_root if values.writes_cdi else "", values.runtime_class)
    extender = extender_settings(of("Deployment", values)["spec"]["template"], tmp_path)
    given = {"gpuPlacement": "", "mostNodes": 0, **values.settings}
    assert (extender.gpu_placement, extender.most_nodes) == (given["gpuPlacement"], given["mostNodes"])
    assert extender.lease == f"{values.namespace}/gpushare-scheduler"
    assert extender.listen.loopback
    assert str(extender.listen) == workloads.EXTENDER_URL.removeprefix("http://")
    assert (extender.preempt, extender.evict) == (values.preemption, values.evict)


@pytest.mark.parametrize("role", ["admission", "extender", "dashboard", "device_plugin"])
def test_each_object_on_hosts_has_a_field_by_which_it_is_ours(role: str) -> None:
    assert list(map(key, filter(is_bare, on_hosts.objects(role, on_hosts.OnHosts(nodes=["gpu1"], prometheus="http://p:9090"))))) == []


def test_each_object_in_the_cluster_has_a_field_by_which_it_is_ours() -> None:
    made = in_cluster.objects(replace(VALUES, dashboard=True, openshift=True, prometheus="http://p:9090"))
    assert list(map(key, filter(is_bare, made))) == []


def is_bare(one: Json) -> bool:
    """Whether an object is a name alone. The API server then notes no owner of it, and uninstall does not find it."""
    return set(one) == {"apiVersion", "kind", "metadata"} and set(one["metadata"]) <= {"name", "namespace"}


def test_the_dashboards_objects_are_applied_and_taken_away_as_ours() -> None:
    made = in_cluster.objects(replace(VALUES, dashboard=True))
    assert {one["kind"] for one in made} >= {"Deployment", "Service"}
    assert foreign(made, VALUES.namespace) is None


def test_the_extender_beside_the_clusters_scheduler(tmp_path: Path) -> None:
    """It has the host's name and loopback address, the certificates that kube-scheduler believes, and no right that it needs not."""
    made = {key(one): one for one in in_cluster.objects(BESIDE)}
    assert foreign(list(made.values()), BESIDE.namespace) is None
    assert not [name for name in made if "gpushare-scheduler" in name[2] and name[0] != "ValidatingAdmissionPolicy"]
    assert ("ValidatingAdmissionPolicy", "", "gpushare-extender") in made
    template = made["DaemonSet", "gpushare-system", "gpushare-extender"]["spec"]["template"]
    pod = template["spec"]
    assert (pod["hostNetwork"], pod.get("hostPID", False)) == (True, False)
    extender, renewal = pod["containers"]
    settings = extender_settings(template, tmp_path)
    assert (settings.lease, str(settings.listen)) == ("kube-system/kube-scheduler", "127.0.0.1:32766")
    assert settings.tls is not None
    assert settings.health_listen is not None
    assert {one["httpGet"]["host"] for name, one in extender.items() if name.endswith("Probe")} == {"127.0.0.1"}
    # The key of the CA stays where the extender does not see it.
    assert [one["mountPath"] for one in extender["volumeMounts"]] == ["/etc/gpushare/settings", str(settings.tls.key.parent)]
    for one in (*pod["initContainers"], renewal):
        with mock.patch("sys.stderr"):
            options = pki._parser().parse_args(one["args"])
        assert (str(options.dir), str(options.copy_to)) == ("/etc/gpushare/pki", str(settings.tls.key.parent))
    for one in (*pod["initContainers"], *pod["containers"]):
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_namespace_is_a_value_everywhere() -> None:
    def text(namespace: str) -> str:
        # The digest is of a configuration that names it.
        return re.sub("[0-9a-f]{64}", "", json.dumps(in_cluster.objects(replace(VALUES, namespace=namespace))))

    assert text("gpushare-system").replace("gpushare-system", "gpushare-other") == text("gpushare-other")


def test_the_image_has_what_the_pods_run() -> None:
    assert f"/{layout.ROOT}/bin" == workloads.PROGRAMS
    assert f"{workloads.PROGRAMS}/python3" == tools.PYTHON
    project = tomllib.loads((COLLECTION / "files/gpushare_runtime/pyproject.toml").read_text())["project"]
    for name in ("extender", "device-plugin"):
        assert container(VALUES, name)["command"][0].rpartition("/")[2] in project["scripts"]
    assert of("Deployment")["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == layout.USER
    assert variables()["gpushare_image"].spec["default"] == f"{layout.NAME}:{project['version']}"
    assert (tools.STATE_FOLDER, tools.SCHEDULER) == (workloads.STATE_FOLDER, policies.SCHEDULER)
    assert tools.CDI_FILES == (protocol.CDI_FILE, CLAIMS_CDI_FILE)


def test_the_device_plugin_has_no_power_but_to_see_the_host() -> None:
    pod = of("DaemonSet")["spec"]["template"]["spec"]
    assert {name for name in pod if name.startswith("host")} == {"hostPID"}
    rights = container(VALUES, "device-plugin")["securityContext"]
    assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    writable = {one["mountPath"] for one in container(VALUES, "device-plugin")["volumeMounts"] if not one.get("readOnly")}
    assert writable == {"/var/lib/kubelet/device-plugins", workloads.STATE_FOLDER, "/var/run/cdi"}
    by_driver = container(SETS[-1], "device-plugin")
    assert by_driver["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert "/host/sys/fs/cgroup" in {one["mountPath"] for one in by_driver["volumeMounts"] if not one.get("readOnly")}


def seen(values: Values) -> dict[str, tuple[str, bool, str]]:
    """By its path in the device plugin's container: the path on the node, whether it is read-only, and how mounts below it come along."""
    every = of("DaemonSet", values)["spec"]["template"]["spec"]["volumes"]
    volumes = {one["name"]: one["hostPath"]["path"] for one in every if "hostPath" in one}
    mounts = [one for one in container(values, "device-plugin")["volumeMounts"] if one["name"] in volumes]
    return {one["mountPath"]: (volumes[one["name"]], one.get("readOnly", False), one.get("mountPropagation", "")) for one in mounts}


def test_the_device_plugin_requests_what_it_used_on_a_real_gpu() -> None:
    resources = container(VALUES, "device-plugin")["resources"]
    requested, most = (int(resources[what]["memory"].removesuffix("Mi")) for what in ("requests", "limits"))
    assert proof.most_memory_of_plugin() < requested < most


def test_kubelets_root_moves_its_pod_resources_and_not_its_folder_of_device_plugins() -> None:
    found = seen(replace(VALUES, kubelet_root="/data/kubelet"))
    assert {path: places for path, places in found.items() if "kubelet" in path} == {
        "/var/lib/kubelet/device-plugins": ("/var/lib/kubelet/device-plugins", False, ""),
        "/data/kubelet/pod-resources": ("/data/kubelet/pod-resources", True, ""),
    }


def test_it_sees_the_driver_and_the_toolkit_of_its_node_and_writes_to_the_folder_of_cdi_specs_alone() -> None:
    default = seen(VALUES)
    assert default["/host/usr"] == ("/usr", True, "")
    # What the GPU Operator mounts there later is seen.
    assert default["/host/run/nvidia"] == ("/run/nvidia", True, "HostToContainer")
    assert default["/var/run/cdi"] == ("/var/run/cdi", False, "")
    other = seen(replace(VALUES, driver_root="/opt/driver", cdi_dir="/run/cdi"))
    assert other["/host/opt/driver"] == ("/opt/driver", True, "HostToContainer")
    assert other["/run/cdi"] == ("/run/cdi", False, "")
    without = seen(replace(VALUES, device_strategy="envvar", driver_root="/opt/driver"))
    assert not {"/host/usr", "/host/run/nvidia", "/host/opt/driver", "/var/run/cdi"} & set(without)


def test_where_the_device_plugin_runs() -> None:
    values = replace(VALUES, tolerations=[{"key": "a", "operator": "Exists"}], node_selector={"a/b": "true"}, selinux_type="spc_t")
    pod = of("DaemonSet", values)["spec"]["template"]["spec"]
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "gpushare.kubernetes/node": "true", "a/b": "true"}
    assert container(values, "device-plugin")["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert of("DaemonSet")["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_the_scheduler_is_never_on_a_gpu_node() -> None:
    """A weight is no fence: with one control plane, the second pod went to a GPU node."""

    def required(values: Values) -> Any:
        return of("Deployment", values)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"].get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )

    off = {"key": "gpushare.kubernetes/node", "operator": "DoesNotExist"}
    of_nvidia = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
    # Both at once.
    assert required(VALUES) == {"nodeSelectorTerms": [{"matchExpressions": [off, of_nvidia]}]}
    assert required(replace(VALUES, scheduler_on_gpu_nodes=True)) is None


def test_the_runtime_class_is_ours_and_has_its_policy() -> None:
    def names(values: Values) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in in_cluster.objects(values)}

    own = {("RuntimeClass", "gpushare-nvidia"), ("ValidatingAdmissionPolicy", "gpushare-runtime-class")}
    assert own <= names(VALUES)
    assert own <= names(BESIDE)
    assert of("RuntimeClass")["handler"] == "nvidia"
    for other in ("nvidia", ""):
        values = replace(VALUES, runtime_class=other)
        assert not own & names(values)
        assert own <= {(one["kind"], one["metadata"]["name"]) for one in in_cluster.obsolete(values)}


def test_what_older_releases_have_made_goes() -> None:
    """The role of a binding cannot be changed, so the bindings to Kubernetes' own roles go by name."""
    gone = in_cluster.obsolete(replace(VALUES, dashboard=True))
    assert [(one["kind"], one["metadata"]["name"]) for one in gone] == [
        ("ClusterRoleBinding", "gpushare-scheduler-kube-scheduler"),
        ("ClusterRoleBinding", "gpushare-scheduler-volume-scheduler"),
    ]
    without = in_cluster.obsolete(replace(VALUES, policies=False, runtime_class="", dashboard=True))
    assert {one["kind"] for one in without} == {"ClusterRoleBinding", "RuntimeClass"}


def reference(one: Json) -> tuple[str, ...]:
    return one["apiVersion"], one["kind"], one["metadata"]["name"], one["metadata"].get("namespace", "")


@pytest.mark.parametrize(
    ("backend", "overuse", "dashboard", "scheduler"),
    [("extender", "evict", False, "own"), ("extender", "report", True, "default"), ("dra", "report", True, "own")],
)
def test_preflight_asks_for_each_right_that_the_run_grants(backend: str, overuse: str, dashboard: bool, scheduler: str) -> None:
    known, names = variables(), role_options(COLLECTION / "roles/in_cluster", "main")
    given = {name: known[name].spec.get("default") for name in names if name in known}
    given |= {"gpushare_image": "localhost/gpushare:1", "gpushare_backend": backend, "gpushare_overuse": overuse}
    given |= {"gpushare_cluster_dashboard": dashboard, "gpushare_scheduler": scheduler}
    judge = judged.InClusterJudge(mock.MagicMock(), mock.MagicMock())
    with (
        mock.patch.object(judge, "_given", return_value=given),
        mock.patch.object(judged, "read_variables"),
        mock.patch.object(judged, "ask", return_value={"failed": True}) as ask,
    ):
        judge.answer({"wait": 0})
    values = replace(VALUES, backend=backend, overuse=overuse, dashboard=dashboard, default_scheduler=scheduler == "default")
    granted = [rule for one in in_cluster.objects(values) if one["kind"] == "ClusterRole" for rule in one["rules"]]
    assert ask.call_args.args[-1]["rules"] == granted


@pytest.mark.parametrize(("openshift", "backend"), [(False, "extender"), (True, "extender"), (False, "dra")])
def test_the_dashboard_comes_on_request_reads_alone_and_goes_without(openshift: bool, backend: str) -> None:
    without = replace(VALUES, openshift=openshift, backend=backend)
    before = in_cluster.objects(without)
    added = [one for one in in_cluster.objects(replace(without, dashboard=True)) if one not in before]
    assert all("gpushare-dashboard" in one["metadata"]["name"] for one in added)
    assert not any(one["kind"] == "Secret" for one in added)
    rules = [rule for one in added if one["kind"] in ("ClusterRole", "Role") for rule in one["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch", *(["use"] if openshift else [])}
    by_claims = {"resourceslices", "resourceclaims"} if backend == "dra" else set()
    assert {resource for rule in rules if "use" not in rule["verbs"] for resource in rule["resources"]} == {"nodes", "pods", *by_claims}
    # A run without it takes away what a run with it has made.
    assert {reference(one) for one in added} <= {reference(one) for one in in_cluster.obsolete(without)}
    assert not {reference(one) for one in in_cluster.obsolete(replace(without, dashboard=True))} & {reference(one) for one in added}


def test_the_dashboard_starts_as_its_pod_says_and_answers_to_those_who_call_it(tmp_path: Path) -> None:
    made = in_cluster.objects(replace(VALUES, dashboard=True, dashboard_hosts=("gpu.example.org",), prometheus="http://prometheus:9090"))
    template = next(one for one in made if reference(one)[1:3] == ("Deployment", "gpushare-dashboard"))["spec"]["template"]
    spec = template["spec"]
    dashboard, renewal = spec["containers"]
    settings = dashboard_settings(template, tmp_path)
    assert (settings.token, settings.history is not None) == (None, True)
    hosts = Hosts(*settings.listen, settings.host_names)
    get = dashboard["readinessProbe"]["httpGet"]
    assert (get["port"], get["scheme"], hosts.accepts(get["httpHeaders"][0]["value"])) == (settings.listen.port, "HTTPS", True)
    for name in ("gpushare-dashboard.gpushare-system.svc", "localhost:9442", "gpu.example.org"):
        assert hosts.accepts(name)
    assert not hosts.accepts("10.0.0.1:9442")
    # No more than it reads, as preflight bounds them.
    most = workloads.dashboard_settings(replace(VALUES, dashboard=True, dashboard_hosts=["a"] * 57))
    assert len(json.loads(re.findall("hostNames: (.*)", most)[0])) == 60
    # The certificate has these names, and is where the dashboard looks for it.
    for arguments in (spec["initContainers"][0]["args"], renewal["args"]):
        options = pki._parser().parse_args(arguments)
        assert {"gpushare-dashboard.gpushare-system.svc", "gpu.example.org"} <= set(options.name)
        assert settings.tls_cert is not None
        assert settings.tls_cert.parent == options.copy_to
        assert options.dir.parent != options.copy_to
    # The key of the authority is not in its reach.
    assert [mount["name"] for mount in dashboard["volumeMounts"]] == ["settings", "tls"]
    assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in [*spec["initContainers"], *spec["containers"]])
    service = next(one for one in made if one["kind"] == "Service")["spec"]
    assert service["ports"][0]["targetPort"] == settings.listen.port


@pytest.mark.parametrize("metrics", [False, True])
def test_no_pod_connects_to_those_of_the_daemons_but_for_their_metrics(metrics: bool) -> None:
    pods = {"gpushare-scheduler": ("Deployment", 9441), "gpushare-device-plugin": ("DaemonSet", 9440)}
    made = in_cluster.objects(replace(VALUES, metrics=metrics))
    found = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "NetworkPolicy"}
    assert found.keys() == pods.keys()
    for name, (kind, port) in pods.items():
        labels = of(kind)["spec"]["template"]["metadata"]["labels"]
        open_ports = {"ingress": [{"ports": [{"port": port, "protocol": "TCP"}]}]} if metrics else {}
        assert found[name] == {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], **open_ports}


@pytest.mark.parametrize("values", [replace(VALUES, metrics=True, pod_monitors=True), replace(BESIDE, metrics=True, pod_monitors=True)])
def test_prometheus_finds_each_daemon_and_has_its_token(values: Values, tmp_path: Path) -> None:
    made = in_cluster.objects(values)
    monitors = {one["metadata"]["name"]: one for one in made if one["kind"] == "PodMonitor"}
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in made if one["kind"] in ("Deployment", "DaemonSet")}
    assert monitors.keys() == pods.keys()
    rules = (COLLECTION / "docs/operate/monitoring/rules.yml").read_text()
    for name, template in pods.items():
        (endpoint,) = monitors[name]["spec"]["podMetricsEndpoints"]
        assert monitors[name]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        (daemon,) = (one for one in template["spec"]["containers"] if one.get("ports"))
        own = daemon["name"] == "device-plugin"
        settings = plugin_settings(template, tmp_path) if own else extender_settings(template, tmp_path)
        address = settings.metrics_listen
        assert address is not None
        assert daemon["ports"] == [{"name": endpoint["port"], "containerPort": address.port, "protocol": "TCP"}]
        # The token that the daemon wants is the one that Prometheus sends, and no other container sees it.
        wanted = settings.metrics_token_file
        assert wanted is not None
        (volume,) = (one for one in template["spec"]["volumes"] if one["name"] == "metrics")
        secret = volume["projected"]["sources"][0]["secret"]
        assert endpoint["authorization"]["credentials"] == {"name": secret["name"], "key": secret["items"][0]["key"]}
        mounts = {
            one["name"]: [m["mountPath"] for m in one.get("volumeMounts", ()) if m["name"] == "metrics"]
            for one in template["spec"]["containers"]
        }
        assert {container: where for container, where in mounts.items() if where} == {daemon["name"]: [str(wanted.parent)]}
        assert secret["items"][0]["path"] == wanted.name
        # By this name the rules ask for it.
        (job,) = (one["replacement"] for one in endpoint["relabelings"] if one.get("targetLabel") == "job")
        assert f'job="{job}"' in rules
    # Root of a GPU node has the Secret of its own pod alone.
    assert len({str(template["spec"]["volumes"][-1]) for template in pods.values()}) == len(pods)


def test_without_metrics_there_is_nothing_of_them() -> None:
    assert "metrics" not in json.dumps(in_cluster.objects(replace(VALUES, pod_monitors=True)))


def test_the_rights_write_no_pod_and_no_node_itself() -> None:
    made = in_cluster.objects(SETS[2])
    rules = [rule for one in made if one["metadata"].get("namespace") != "kube-public" for rule in one.get("rules", [])]
    may = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert {(resource, verb) for resource, verb in may if verb not in ("get", "list", "watch")} == {
        ("pods", "delete"),
        ("persistentvolumes", "update"),
        ("persistentvolumeclaims", "update"),
        ("resourceclaims", "update"),
        ("resourceclaims/status", "update"),
        ("resourceclaims/status", "patch"),
        ("resourceclaims/binding", "update"),
        ("resourceclaims/binding", "patch"),
        ("podgroups/status", "patch"),
        ("compositepodgroups/status", "patch"),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
        ("pods/status", "patch"),
        ("nodes/status", "patch"),
        ("pods/binding", "create"),
        ("pods/eviction", "create"),
        ("events", "create"),
        ("events", "patch"),
        ("leases", "create"),
        ("leases", "update"),
    }
    assert not {resource for resource, _ in may} & {"secrets", "configmaps", "serviceaccounts/token"}
    # None of Kubernetes' own roles but the one by which it knows its callers.
    granted = {one["roleRef"]["name"] for one in in_cluster.objects(SETS[2]) if one["kind"].endswith("RoleBinding")}
    assert {name for name in granted if not name.startswith("gpushare-")} == {"extension-apiserver-authentication-reader"}


def test_what_the_scheduler_writes_is_its_own_or_has_a_policy() -> None:
    """A right in the whole cluster that no policy narrows is one that SECURITY.md would have to name."""
    made = in_cluster.objects(VALUES)
    (role,) = (one for one in made if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "gpushare-scheduler")
    writes = {(group, name) for rule in role["rules"] for group in rule["apiGroups"] for name in rule["resources"] if _writes(rule)}
    policies_of = [one["spec"]["matchConstraints"]["resourceRules"][0] for one in made if one["kind"] == "ValidatingAdmissionPolicy"]
    seen = {(group, name) for rule in policies_of for group in rule["apiGroups"] for name in rule["resources"]}
    assert writes - seen == {
        # The policy of events sees both kinds of them.
        ("events.k8s.io", "events"),
        # They write nothing.
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
        # A part of resourceclaims/status, which has its own right.
        ("resource.k8s.io", "resourceclaims/binding"),
        # Of the conditions of a group of pods, which nothing but schedulers reads.
        ("scheduling.k8s.io", "podgroups/status"),
        ("scheduling.k8s.io", "compositepodgroups/status"),
    }


def _writes(rule: Json) -> bool:
    return bool(set(rule["verbs"]) - {"get", "list", "watch"})


def test_another_configuration_makes_other_pods() -> None:
    one, other = (
        of("Deployment", values)["spec"]["template"]["metadata"]["annotations"] for values in (VALUES, replace(VALUES, percentage=7))
    )
    assert one != other
    assert of("Deployment")["spec"]["template"]["metadata"]["annotations"] == one


def test_pods_find_the_api_server_at_its_address_where_that_is_given() -> None:
    for name in ("kube-scheduler", "extender", "device-plugin"):
        environment = {one["name"]: one.get("value") for one in container(SETS[2], name)["env"]}
        assert (environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]) == ("10.0.0.1", "6443")
        assert "KUBERNETES_SERVICE_HOST" not in {one["name"] for one in container(VALUES, name).get("env", [])}


@pytest.mark.parametrize("url", ["10.0.0.1", "http://10.0.0.1", "https://"])
def test_no_other_url_is_an_api_servers(url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        in_cluster.objects(replace(VALUES, api_server=url))


def test_the_schedulers_image_is_of_the_servers_version() -> None:
    for version in ("v1.36.3", "v1.36.3+k3s1", "v1.36.3-eks-3abbec1", "v1.36.3-gke.1080000", "1.36.3"):
        assert scheduler_image(version) == "registry.k8s.io/kube-scheduler:v1.36.3"
    for version in ("unknown", "v1.36", "v1.30.100", "v1.30.101-aks"):
        assert scheduler_image(version) == ""
