# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a control plane's files and kubeadm's part of the cluster become with our extender, and what they become again without it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import kubeadm, scheduler_config
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import manifest as scheduler_manifest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import SchedulerManifest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.policy import PolicyMap
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import (
    Found,
    SchedulerPlan,
    UnreadFile,
    check_lease,
    plan_present,
    read_manifest,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.unplan import plan_absent

from unit.fakes.plugins.scheduler.manifests import CONFIG_PATH, EXTENDER, MANIFEST, MANIFEST_PATH, OTHERS_CONFIG, REGENERATED, TLS
from unit.fakes.plugins.scheduler.planned import files_done
from unit.golden import Golden

CLUSTER = """\
apiServer: {}
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
networking:
  podSubnet: 10.244.0.0/16
proxy: {}
scheduler: {}
"""
CLUSTER_WITH_US = """\
apiServer: {}
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
networking:
  podSubnet: 10.244.0.0/16
proxy: {}
scheduler:
  extraArgs:
  - name: config
    value: /etc/kubernetes/gpushare/kube-scheduler.yaml
  extraVolumes:
  - name: gpushare-scheduler-config
    hostPath: /etc/kubernetes/gpushare
    mountPath: /etc/kubernetes/gpushare
    readOnly: true
    pathType: DirectoryOrCreate
  - name: gpushare-pki
    hostPath: /etc/gpushare/pki/scheduler
    mountPath: /etc/gpushare/pki/scheduler
    readOnly: true
    pathType: Directory
"""
UNTOUCHED = Found({MANIFEST_PATH: MANIFEST, CONFIG_PATH: None}, cluster=CLUSTER, nodes=3)


def present(found: Found, percentage: int = -1, extender: scheduler_config.ExtenderEntry = TLS) -> SchedulerPlan:
    return plan_present(MANIFEST_PATH, CONFIG_PATH, found, extender, percentage)


def absent(found: Found, extender: scheduler_config.ExtenderEntry = TLS) -> SchedulerPlan:
    return plan_absent(MANIFEST_PATH, CONFIG_PATH, found, extender)


@pytest.fixture
def changed() -> Found:
    """kubeadm's files, with our extender."""
    return files_done(UNTOUCHED, present(UNTOUCHED))


def forgotten(found: Found) -> Found:
    return replace(found, journal={})


def test_http_and_certificates_follow_the_setting_both_ways() -> None:
    with_tls = files_done(UNTOUCHED, present(UNTOUCHED))
    plain = files_done(with_tls, present(with_tls, extender=EXTENDER))
    assert files_done(UNTOUCHED, present(UNTOUCHED, extender=EXTENDER)).files == plain.files
    assert "gpushare-pki" not in (plain.files[MANIFEST_PATH] or "") + (plain.cluster or "")
    assert files_done(plain, present(plain)).files == with_tls.files


def test_what_kubeadm_writes_from_it_is_the_manifest_that_we_made(changed: Found) -> None:
    upgraded = replace(changed, files={**changed.files, MANIFEST_PATH: REGENERATED})
    ours, theirs = (read_manifest(found.files[MANIFEST_PATH] or "") for found in (changed, upgraded))
    assert ours.shape["mounts"] == theirs.shape["mounts"]
    assert sorted(ours.words) == sorted(theirs.words)
    again = files_done(upgraded, present(upgraded))
    text = again.files[MANIFEST_PATH] or ""
    assert [
        line for line in text.splitlines() if "gpushare.kubernetes/" not in line and line != "  annotations:"
    ] == REGENERATED.splitlines()
    assert not present(again).changed


def test_a_control_plane_that_joined_after_the_install_gets_the_configuration_that_its_manifest_names() -> None:
    """kubeadm has written its manifest from the ClusterConfiguration; nothing of ours is on the host, and there is no journal."""
    first = files_done(UNTOUCHED, present(UNTOUCHED))
    joined = replace(first, files={MANIFEST_PATH: REGENERATED, CONFIG_PATH: None}, journal={})
    plan = present(joined)
    installed = files_done(joined, plan)
    assert installed.files[CONFIG_PATH] == first.files[CONFIG_PATH]
    assert plan.for_module["cluster"] is None
    assert not present(installed).changed


def test_a_control_plane_that_was_prepared_and_joined_is_without_us_afterwards_as_kubeadm_writes_it() -> None:
    """The configuration was copied before `kubeadm join`, and the manifest that kubeadm wrote then names it already."""
    first = files_done(UNTOUCHED, present(UNTOUCHED))
    text = first.files[CONFIG_PATH] or ""
    copied = Entry(CONFIG_PATH, "scheduler", None, (digest(None), digest(text.encode())), False)
    joined = replace(first, files={MANIFEST_PATH: REGENERATED, CONFIG_PATH: text}, journal={CONFIG_PATH: copied})
    plan = present(joined)
    assert [one["path"] for one in plan.for_module["files"] if one["content"] != joined.files[one["path"]]] == [MANIFEST_PATH]
    installed = files_done(joined, plan)
    assert not present(installed).changed
    removed = files_done(installed, absent(installed))
    assert removed.files[CONFIG_PATH] is None
    assert yaml.safe_load(removed.files[MANIFEST_PATH] or "") == yaml.safe_load(MANIFEST)
    assert removed.cluster == CLUSTER


def test_a_cluster_without_kubeadm_is_told_and_goes_on(golden: Golden) -> None:
    found = replace(UNTOUCHED, cluster=None)
    plan = present(found)
    assert plan.changed
    golden(plan.notes[0])
    assert not absent(files_done(found, plan)).notes


def test_another_configuration_in_kubeadms_part_is_left_and_told() -> None:
    theirs = CLUSTER.replace("scheduler: {}", "scheduler:\n  extraArgs:\n  - name: config\n    value: /theirs.yaml")
    found = replace(UNTOUCHED, cluster=theirs)
    plan = present(found)
    assert "has --config=/theirs.yaml" in plan.notes[0]
    assert yaml.safe_load(files_done(found, plan).cluster or "")["scheduler"]["extraArgs"] == [{"name": "config", "value": "/theirs.yaml"}]


@pytest.mark.parametrize(
    ("setting", "nodes", "before", "after"),
    [(-1, 500, None, 100), (-1, 501, None, 0), (-1, 3, 30, 30), (-1, 3, 0, 0), (100, 3, 30, 100), (0, 3, None, 0)],
)
def test_the_share_of_nodes_that_is_looked_at(setting: int, nodes: int, before: int | None, after: int) -> None:
    text = OTHERS_CONFIG + ("" if before is None else f"percentageOfNodesToScore: {before}  # ours\n")
    found = replace(UNTOUCHED, files={MANIFEST_PATH: MANIFEST, CONFIG_PATH: text}, nodes=nodes)
    changed = files_done(found, present(found, setting))
    assert yaml.safe_load(changed.files[CONFIG_PATH] or "")["percentageOfNodesToScore"] == after
    assert not present(changed, setting).changed
    assert files_done(changed, absent(changed)).files[CONFIG_PATH] == text
    edited = replace(changed, files={**changed.files, CONFIG_PATH: (changed.files[CONFIG_PATH] or "") + "parallelism: 4\n"})
    assert files_done(edited, absent(edited)).files[CONFIG_PATH] == text + "parallelism: 4\n"


def test_our_share_of_nodes_follows_the_cluster_and_the_setting_but_an_administrators_stays() -> None:
    small = files_done(UNTOUCHED, present(UNTOUCHED))
    large = replace(small, nodes=600)
    large = files_done(large, present(large))
    assert "percentageOfNodesToScore: 0\n" in (large.files[CONFIG_PATH] or "")
    set_to = files_done(large, present(large, 40))
    assert "percentageOfNodesToScore: 40\n" in (set_to.files[CONFIG_PATH] or "")
    unset = files_done(set_to, present(set_to))
    assert "percentageOfNodesToScore: 0\n" in (unset.files[CONFIG_PATH] or "")
    text = (unset.files[CONFIG_PATH] or "").replace("percentageOfNodesToScore: 0", "percentageOfNodesToScore: 7")
    edited = replace(unset, files={**unset.files, CONFIG_PATH: text})
    assert (files_done(edited, present(edited)).files[CONFIG_PATH]) == text


@pytest.mark.parametrize("setting", [-2, 101])
def test_a_share_that_cannot_be_is_rejected(setting: int) -> None:
    with pytest.raises(scheduler_manifest.SchedulerError, match=f"or 0 to 100; found {setting}"):
        present(UNTOUCHED, setting)


# Back again.


def with_others_config() -> Found:
    pod: dict[str, Any] = yaml.safe_load(MANIFEST)
    pod["spec"]["containers"][0]["command"].append("--config=/config/scheduler.yaml")
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "own", "mountPath": "/config/scheduler.yaml", "readOnly": True})
    pod["spec"]["volumes"].append({"name": "own", "hostPath": {"path": "/srv/k8s/sched-7.yaml", "type": "File"}})
    files = {MANIFEST_PATH: yaml.safe_dump(pod, sort_keys=False), "/srv/k8s/sched-7.yaml": OTHERS_CONFIG, CONFIG_PATH: None}
    return replace(UNTOUCHED, files=files)


ORIGINALS = (
    OTHERS_CONFIG
    + """\
- urlPrefix: "http://127.0.0.1:32766/gpushare-scheduler"  # the original's
  filterVerb: filter
  bindVerb: bind
  nodeCacheCapable: true
  managedResources:
  - name: aliyun.com/gpu-mem
    ignoredByScheduler: false
"""
)
STARTS = {
    "kubeadm's": UNTOUCHED,
    "the original's": replace(UNTOUCHED, files={MANIFEST_PATH: MANIFEST, CONFIG_PATH: ORIGINALS}),
    "with somebody's configuration": with_others_config(),
    "a file where ours goes": replace(UNTOUCHED, files={MANIFEST_PATH: MANIFEST, CONFIG_PATH: OTHERS_CONFIG}),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=list(STARTS))
def test_untouched_files_get_their_old_bytes_back_and_then_there_is_nothing_to_do(start: Found) -> None:
    changed = files_done(start, present(start))
    plan = absent(changed)
    back = files_done(changed, plan)
    assert (back.files, back.cluster) == (start.files, start.cluster)
    assert plan.notes == []
    for found in (start, back, forgotten(back)):
        assert (absent(found).changed, absent(found).notes) == (False, [])


@pytest.mark.parametrize("extender", [TLS, EXTENDER], ids=["https", "at the address of the original"])
def test_where_others_changed_the_configuration_since_the_originals_extender_comes_back_for_ours(
    extender: scheduler_config.ExtenderEntry,
) -> None:
    start = STARTS["the original's"]
    changed = files_done(start, present(start, extender=extender))
    urls = [one["urlPrefix"] for one in yaml.safe_load(changed.files[CONFIG_PATH] or "")["extenders"]]
    assert urls == ["http://127.0.0.1:8888/fpga", extender.url_prefix]
    edited = replace(changed, files={**changed.files, CONFIG_PATH: (changed.files[CONFIG_PATH] or "") + "parallelism: 4\n"})
    back = files_done(edited, absent(edited, extender))
    assert yaml.safe_load(back.files[CONFIG_PATH] or "") == {**yaml.safe_load(ORIGINALS), "parallelism": 4}
    # And stays: nothing of it is ours.
    assert not absent(forgotten(back), extender).changed


def test_a_manifest_that_others_changed_loses_exactly_our_part(changed: Found, golden: Golden) -> None:
    text = (changed.files[MANIFEST_PATH] or "").replace("    - --leader-elect=true", "    - --leader-elect=true\n    - --v=4 # ticket 7")
    edited = replace(changed, files={**changed.files, MANIFEST_PATH: text})
    plan = absent(edited)
    back = files_done(edited, plan)
    assert back.files[MANIFEST_PATH] == MANIFEST.replace("    - --leader-elect=true", "    - --leader-elect=true\n    - --v=4 # ticket 7")
    assert back.files[CONFIG_PATH] is None
    golden("\n".join(plan.notes))


@pytest.mark.parametrize("rerun", [False, True])
def test_what_kubeadm_wrote_anew_becomes_what_it_would_have_written_without_us(changed: Found, rerun: bool) -> None:
    upgraded_cluster = CLUSTER_WITH_US.replace("v1.36.3", "v1.37.0")
    upgraded = replace(changed, files={**changed.files, MANIFEST_PATH: REGENERATED}, cluster=upgraded_cluster)
    if rerun:
        upgraded = files_done(upgraded, present(upgraded))
    back = files_done(upgraded, absent(upgraded))
    assert (back.files[MANIFEST_PATH], back.files[CONFIG_PATH]) == (MANIFEST, None)
    assert back.cluster == CLUSTER.replace("v1.36.3", "v1.37.0")


def test_a_configuration_of_ours_that_others_changed_stays_in_use_without_our_part(changed: Found) -> None:
    text = (changed.files[CONFIG_PATH] or "") + "parallelism: 4\n"
    edited = replace(changed, files={**changed.files, CONFIG_PATH: text})
    plan = absent(edited)
    back = files_done(edited, plan)
    config = yaml.safe_load(back.files[CONFIG_PATH] or "")
    assert config["parallelism"] == 4
    assert set(config) & {"extenders", "percentageOfNodesToScore"} == set()
    assert read_manifest(back.files[MANIFEST_PATH] or "").flags["config"] == CONFIG_PATH
    assert "gpushare-pki" not in (back.files[MANIFEST_PATH] or "") + (back.cluster or "")
    assert scheduler_manifest.annotation_in(back.files[MANIFEST_PATH] or "") is None
    assert kubeadm.config_argument(yaml.safe_load(back.cluster or "")) == CONFIG_PATH
    assert any("still names it" in note for note in plan.notes)
    assert not absent(forgotten(back)).changed


def test_a_host_without_a_scheduler_any_more_loses_our_configuration(changed: Found) -> None:
    gone = replace(changed, files={**changed.files, MANIFEST_PATH: None})
    plan = absent(gone)
    assert plan.for_module["scheduler"] is None
    assert files_done(gone, plan).files == {MANIFEST_PATH: None, CONFIG_PATH: None}


def test_a_file_that_somebodys_own_flag_names_is_not_taken_away_even_if_we_made_it(golden: Golden) -> None:
    named = MANIFEST.replace("    - --bind-address", f"    - --config={CONFIG_PATH}\n    - --bind-address")
    start = replace(UNTOUCHED, files={MANIFEST_PATH: named, CONFIG_PATH: None})
    changed = files_done(start, present(start))
    back = files_done(changed, absent(changed))
    assert back.files[MANIFEST_PATH] == named
    assert "extenders" not in yaml.safe_load(back.files[CONFIG_PATH] or "")
    golden("\n".join(absent(changed).notes))


def with_flags(*flags: str) -> SchedulerPlan:
    lines = "".join(f"    - {one}\n" for one in flags)
    manifest = MANIFEST.replace("    - --leader-elect=true\n", lines)
    return present(replace(UNTOUCHED, files={**UNTOUCHED.files, MANIFEST_PATH: manifest}))


def test_the_lease_is_the_one_that_the_scheduler_will_compete_for() -> None:
    assert present(UNTOUCHED).lease == "kube-system/kube-scheduler"
    assert (
        with_flags("--leader-elect=true", "--leader-elect-resource-name=mine", "--leader-elect-resource-namespace=infra").lease
        == "infra/mine"
    )
    assert with_flags("--leader-elect=false").lease == "none"


def test_two_schedulers_that_would_be_active_at_once_are_rejected(golden: Golden) -> None:
    check_lease("kube-system/kube-scheduler", "kube-system/kube-scheduler", 3, "cp1")
    check_lease("infra/mine", "", 3, "cp1")
    check_lease("none", "none", 1, "cp1")
    with golden.raised(scheduler_manifest.SchedulerError):
        check_lease("none", "none", 3, "cp1")
    with golden.raised(scheduler_manifest.SchedulerError):
        check_lease("infra/mine", "kube-system/kube-scheduler", 3, "cp1")
    with golden.raised(scheduler_manifest.SchedulerError):
        check_lease("none", "kube-system/kube-scheduler", 1, "cp1")


# kubeadm's part, value by value.

BARE = read_manifest(MANIFEST)
OURS, PLAIN = (
    SchedulerManifest.parsed(scheduler_manifest.merge_manifest(BARE, scheduler_manifest.Location(CONFIG_PATH, CONFIG_PATH), "x", tls_dir))
    for tls_dir in (TLS.tls_dir, "")
)
ARGUMENT = {"name": "config", "value": CONFIG_PATH}
FOLDER = "/etc/kubernetes/gpushare"
VOLUME = {"name": scheduler_manifest.VOLUME, "hostPath": FOLDER, "mountPath": FOLDER, "readOnly": True, "pathType": "DirectoryOrCreate"}
PKI = {"name": scheduler_manifest.TLS_VOLUME, "hostPath": TLS.tls_dir, "mountPath": TLS.tls_dir, "readOnly": True, "pathType": "Directory"}
OTHER = {"name": "other", "hostPath": "/x", "mountPath": "/x"}


def cluster(release: str = "v1beta4", **scheduler: Any) -> dict[str, Any]:
    return {"kind": "ClusterConfiguration", "apiVersion": f"kubeadm.k8s.io/{release}", "scheduler": scheduler}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (None, None),
        ({"v": "4"}, None),
        ({"config": "/a"}, "/a"),
        ([{"name": "v", "value": "4"}], None),
        ([{"name": "config", "value": "/a"}, {"name": "config", "value": "/b"}, {"name": "v"}], "/b"),
    ],
)
def test_kubeadms_last_argument_counts(arguments: Any, found: str | None) -> None:
    assert kubeadm.config_argument(cluster(extraArgs=arguments)) == found
    assert kubeadm.config_argument({"scheduler": None}) is None


@pytest.mark.parametrize(
    ("before", "pod", "after"),
    [
        (cluster(), OURS, cluster(extraArgs=[ARGUMENT], extraVolumes=[VOLUME, PKI])),
        (cluster(extraArgs=[], extraVolumes=None), PLAIN, cluster(extraArgs=[ARGUMENT], extraVolumes=[VOLUME])),
        *((cluster(one), PLAIN, cluster(one, extraArgs={"config": CONFIG_PATH}, extraVolumes=[VOLUME])) for one in ("v1beta1", "v1beta2")),
        (
            cluster("v1beta3", extraArgs={"v": "4"}),
            PLAIN,
            cluster("v1beta3", extraArgs={"v": "4", "config": CONFIG_PATH}, extraVolumes=[VOLUME]),
        ),
        (cluster(extraArgs=[{"name": "v"}]), PLAIN, cluster(extraArgs=[{"name": "v"}, ARGUMENT], extraVolumes=[VOLUME])),
        (
            cluster(extraArgs=[{"name": "config", "value": "/a"}]),
            PLAIN,
            cluster(extraArgs=[{"name": "config", "value": "/a"}], extraVolumes=[VOLUME]),
        ),
        # Ours is put right in its place, goes where it is not needed, and does not mount what is mounted already.
        (
            cluster(extraVolumes=[{**PKI, "hostPath": "/old"}, OTHER]),
            OURS,
            cluster(extraArgs=[ARGUMENT], extraVolumes=[PKI, OTHER, VOLUME]),
        ),
        (cluster(extraVolumes=[PKI, OTHER]), PLAIN, cluster(extraArgs=[ARGUMENT], extraVolumes=[OTHER, VOLUME])),
        (
            cluster(extraVolumes=[{**OTHER, "mountPath": FOLDER}]),
            PLAIN,
            cluster(extraArgs=[ARGUMENT], extraVolumes=[{**OTHER, "mountPath": FOLDER}]),
        ),
        # A manifest without our configuration.
        (cluster(extraVolumes=[PKI]), BARE, cluster()),
    ],
)
def test_kubeadm_is_told_what_its_manifest_needs(before: dict[str, Any], pod: SchedulerManifest, after: dict[str, Any]) -> None:
    kept = copy.deepcopy(before)
    assert kubeadm.merge(before, pod) == after
    assert kubeadm.merge(after, pod) == after
    assert before == kept
    if pod is BARE:
        return
    without_scheduler = {key: value for key, value in before.items() if key != "scheduler"}
    assert kubeadm.merge(without_scheduler, pod)["scheduler"]["extraVolumes"] == ([VOLUME, PKI] if pod is OURS else [VOLUME])


def test_only_volumes_of_the_host_that_carry_our_files_are_told() -> None:
    pod = yaml.safe_load(MANIFEST)
    container = pod["spec"]["containers"][0]
    container["command"].append("--config=/c/d/e.yaml")
    places = {"deep": "/c/d/", "outer": "/c", "file": "/c/d/e.yaml", "prefix": "/c/d/e", "sub": "/c", "empty": "/c"}
    container["volumeMounts"] = [{"name": name, "mountPath": path} for name, path in places.items()]
    container["volumeMounts"][4]["subPath"] = "x"
    pod["spec"]["volumes"] = [{"name": name, "hostPath": {"path": f"/{name}"}} for name in places if name != "empty"]
    pod["spec"]["volumes"].append({"name": "empty", "emptyDir": {}})
    assert kubeadm.merge(cluster(), SchedulerManifest.parsed(pod))["scheduler"]["extraVolumes"] == [
        {"name": name, "hostPath": f"/{name}", "mountPath": places[name]} for name in ("deep", "outer", "file")
    ]


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        (cluster(extraArgs=[ARGUMENT], extraVolumes=[VOLUME, PKI]), CONFIG_PATH, cluster()),
        (
            cluster(extraArgs=[{"name": "v"}, ARGUMENT], extraVolumes=[OTHER, PKI]),
            CONFIG_PATH,
            cluster(extraArgs=[{"name": "v"}], extraVolumes=[OTHER]),
        ),
        (cluster(extraArgs={"config": CONFIG_PATH, "v": "4"}), CONFIG_PATH, cluster(extraArgs={"v": "4"})),
        (cluster(extraArgs=[ARGUMENT], extraVolumes=[VOLUME, PKI]), None, cluster(extraArgs=[ARGUMENT], extraVolumes=[VOLUME])),
        (cluster(extraArgs=[ARGUMENT]), "/another", cluster(extraArgs=[ARGUMENT])),
        (cluster(extraArgs={"config": "/a"}), "/another", cluster(extraArgs={"config": "/a"})),
        (cluster(extraArgs=[], extraVolumes=[]), CONFIG_PATH, cluster(extraArgs=[], extraVolumes=[])),
        ({"kind": "ClusterConfiguration", "scheduler": None}, CONFIG_PATH, {"kind": "ClusterConfiguration", "scheduler": None}),
        ({"kind": "ClusterConfiguration"}, CONFIG_PATH, {"kind": "ClusterConfiguration"}),
    ],
)
def test_kubeadms_part_without_us(before: dict[str, Any], path: str | None, after: dict[str, Any]) -> None:
    kept = copy.deepcopy(before)
    assert kubeadm.unmerge(before, path) == after
    assert before == kept


MERGED = {"name": "config", "value": "/ignored", "mergeMethod": "append"}


def test_an_argument_of_kubeadms_v1_that_only_merges_gives_the_scheduler_no_flag() -> None:
    """kubeadm ignores it, because its own arguments of the scheduler have no such name (`ArgumentsToCommand` of 1.38.0-beta.0)."""
    before = cluster("v1", extraArgs=[MERGED])
    assert kubeadm.config_argument(before) is None
    after = kubeadm.merge(before, PLAIN)
    assert after == cluster("v1", extraArgs=[MERGED, ARGUMENT], extraVolumes=[VOLUME])
    assert kubeadm.unmerge(after, CONFIG_PATH) == before
    assert kubeadm.without_argument(after, "config", cluster("v1"))["scheduler"]["extraArgs"] == [MERGED]


@pytest.mark.parametrize(
    "scheduler",
    [
        {"extraArgs": "config=/a"},
        {"extraArgs": ["config=/a"]},
        {"extraArgs": [{"name": "v"}, None]},
        {"extraVolumes": {"a": {}}},
        {"extraVolumes": ["/a"]},
        ["x"],
        "x",
    ],
)
def test_a_cluster_configuration_of_another_form_is_rejected_in_words(scheduler: Any, golden: Golden) -> None:
    strange = {"kind": "ClusterConfiguration", "apiVersion": "kubeadm.k8s.io/v2", "scheduler": scheduler}
    for change in (lambda: kubeadm.merge(strange, OURS), lambda: kubeadm.unmerge(strange, None)):
        with golden.raised(scheduler_manifest.SchedulerError):
            change()


def test_version_and_gates_are_read_without_a_yaml_library() -> None:
    text = "apiVersion: kubeadm.k8s.io/v1beta3\nfeatureGates:\n  NodeLocalCRISocket: true\n  X: false\nkind: ClusterConfiguration\n"
    assert kubeadm.version_and_gates(text) == ("v1beta3", ["NodeLocalCRISocket", "X"])
    for other in ("", "x", "apiVersion: v1\n", "\0"):
        assert kubeadm.version_and_gates(other) == ("", [])
    many = (
        "apiVersion: kubeadm.k8s.io/" + "9" * 500 + "\nfeatureGates:\n" + "".join(f"  {'G' * 100}{number}: true\n" for number in range(500))
    )
    version, gates = kubeadm.version_and_gates(many)
    assert (len(version), len(gates), {len(name) for name in gates}) == (80, 100, {80})


@pytest.mark.parametrize(("wrong", "words"), [({"kind": "InitConfiguration"}, "'InitConfiguration'"), (["x"], "'list'"), ({}, "None")])
def test_another_object_is_no_configuration_of_a_cluster(wrong: Any, words: str) -> None:
    message = f"^ConfigMap kube-system/kubeadm-config must hold a ClusterConfiguration; found {words}$"
    with pytest.raises(scheduler_manifest.SchedulerError, match=message):
        kubeadm.merge(wrong, OURS)
    with pytest.raises(scheduler_manifest.SchedulerError, match=message):
        kubeadm.unmerge(wrong, None)


# The orders for the module.


def test_the_orders_say_all_that_the_module_does() -> None:
    plan = present(replace(UNTOUCHED, cluster_version="42"))
    after = files_done(UNTOUCHED, plan)
    texts = [after.files[path] or "" for path in (CONFIG_PATH, MANIFEST_PATH)]
    shapes = {digest(text.encode()): read_manifest(text).shape for text in (MANIFEST, texts[1])}
    assert plan.for_module == {
        "files": [
            {"path": CONFIG_PATH, "content": texts[0], "mode": None, "sha256_before": ""},
            {"path": MANIFEST_PATH, "content": texts[1], "mode": None, "sha256_before": digest(MANIFEST.encode())},
        ],
        "values": [["value:percentageOfNodesToScore", None, "100"]],
        "cluster": {
            "path": kubeadm.PATH,
            "content": CLUSTER_WITH_US,
            "mode": None,
            "sha256_before": digest(CLUSTER.encode()),
            "version": "42",
        },
        "policy": None,
        "shapes": shapes,
        "scheduler": {
            "image": "registry.k8s.io/kube-scheduler:v1.36.3",
            "command": scheduler_manifest.candidate_command(read_manifest(texts[1])),
            "mounts": read_manifest(texts[1]).mounts,
            "candidate": texts[0],
            "kind": "KubeSchedulerConfiguration",
            "lease": {"namespace": "kube-system", "name": "kube-scheduler", "by": "leases"},
            "name": "default-scheduler",
            "read_once": ["/etc/gpushare/pki/scheduler/ca.crt"],
        },
    }
    assert texts[0].startswith("# Made by gpushare.kubernetes, which adds its extender and keeps everything else.\napiVersion: ")
    assert (plan.changed, plan.notes, plan.shape) == (True, [], shapes[digest(MANIFEST.encode())])
    assert [one["after_header"] for one in plan.diff] == [CONFIG_PATH, MANIFEST_PATH, kubeadm.PATH]
    assert [(one["before"], one["after"]) for one in (plan.diff[0], plan.diff[-1])] == [("", texts[0]), (CLUSTER, CLUSTER_WITH_US)]
    again = present(after)
    assert (again.for_module["cluster"], again.for_module["values"], again.diff, again.changed) == (None, [], [], False)
    assert present(replace(after, cluster=CLUSTER)).changed


def test_what_a_scheduler_reads_once_is_a_configuration_that_its_manifest_does_not_name_by_hash() -> None:
    start = with_others_config()
    changed = files_done(start, present(start, extender=EXTENDER))
    assert present(changed, extender=EXTENDER).for_module["scheduler"]["read_once"] == []
    assert absent(changed, EXTENDER).for_module["scheduler"]["read_once"] == ["/srv/k8s/sched-7.yaml"]
    assert absent(files_done(UNTOUCHED, present(UNTOUCHED))).for_module["scheduler"]["read_once"] == []


def test_what_the_host_has_answered_is_read() -> None:
    journal = [
        {"path": "/a", "original": "x", "mode": 0o600, "left": ["1", "2"], "others": True},
        {"path": "/b", "original": None, "mode": None, "left": ["", "3"], "others": False},
    ]
    answer = {"files": {"/a": None}, "journal": journal, "cluster": {"text": "t", "version": "7"}, "nodes": 5, "others": ["cp2"]}
    answer["unreached"] = {"http://a": "refused"}
    entries = {
        "/a": Entry("/a", "scheduler", FileState(b"x", 0o600, 0, 0, None), ("1", "2"), True),
        "/b": Entry("/b", "scheduler", None, ("", "3"), False),
    }
    assert Found.from_answer(answer) == Found({"/a": None}, entries, "t", "7", 5, ["cp2"], unreached={"http://a": "refused"})
    policy = {"namespace": "n", "name": "m", "text": "t", "version": "8"}
    bare = {**answer, "cluster": None, "server": "v1.36.3", "policy": policy}
    known = PolicyMap("n", "m", "t", "8")
    assert Found.from_answer(bare) == Found({"/a": None}, entries, None, "", 5, ["cp2"], "v1.36.3", known, answer["unreached"])


def test_a_dead_extender_of_others_ends_the_plan() -> None:
    """The scheduler is restarted with the file, and would place no pod of the cluster."""
    start, dead = with_others_config(), "http://127.0.0.1:9443/theirs"
    path = next(path for path in start.files if path.startswith("/srv/"))
    text = start.files[path] or ""
    others = f"extenders:\n- urlPrefix: {dead}\n  filterVerb: filter\n"
    theirs = replace(start, files={**start.files, path: text + others})
    assert present(theirs).changed, "it answers"
    silent = replace(theirs, unreached={dead: "Connection refused"})
    with pytest.raises(scheduler_manifest.SchedulerError, match=rf"extenders\[0\] of {path}, .* at {dead}: Connection refused; .* any pod"):
        present(silent)
    passed = replace(silent, files={**start.files, path: text + others + "  ignorable: true\n"})
    assert present(passed).changed, "pods pass without it"


def test_a_configuration_that_a_flag_names_must_be_there(golden: Golden) -> None:
    start = with_others_config()
    with golden.raised(scheduler_manifest.SchedulerError):
        present(replace(start, files={**start.files, "/srv/k8s/sched-7.yaml": None}))
    # One that names ours may be made.
    named = MANIFEST.replace("    - --bind-address", f"    - --config={CONFIG_PATH}\n    - --bind-address")
    assert present(replace(UNTOUCHED, files={MANIFEST_PATH: named, CONFIG_PATH: None})).changed


# The way back, where others were there meanwhile.


def test_every_file_of_the_journal_is_asked_for(changed: Found) -> None:
    with pytest.raises(UnreadFile) as error:
        absent(replace(changed, files={name: text for name, text in changed.files.items() if name != CONFIG_PATH}))
    assert error.value.path == CONFIG_PATH
    moved = Entry("/old/config.yaml", "scheduler", None, ("", digest(b"ours")), False)
    journal = {**changed.journal, "/old/config.yaml": moved}
    with pytest.raises(UnreadFile):
        absent(replace(changed, journal=journal))
    plan = absent(replace(changed, journal=journal, files={**changed.files, "/old/config.yaml": "ours"}))
    paths = [one["path"] for one in plan.for_module["files"]]
    assert paths == [CONFIG_PATH, "/old/config.yaml", MANIFEST_PATH]
    assert [one["content"] for one in plan.for_module["files"]] == [None, None, MANIFEST]


def test_old_files_get_their_old_modes(changed: Found) -> None:
    entry = changed.journal[MANIFEST_PATH]
    assert entry.original is not None
    journal = {**changed.journal, MANIFEST_PATH: replace(entry, original=entry.original._replace(mode=0o600))}
    assert [one["mode"] for one in absent(replace(changed, journal=journal)).for_module["files"]] == [None, 0o600]


def test_a_file_that_is_no_configuration_any_more_is_left_alone(changed: Found) -> None:
    for text in ("kind: Pod\n", "- a list\n"):
        plan = absent(replace(changed, files={**changed.files, CONFIG_PATH: text}))
        assert plan.for_module["files"][0]["content"] == text


def test_a_configuration_that_is_gone_stays_gone(changed: Found) -> None:
    plan = absent(replace(changed, files={**changed.files, CONFIG_PATH: None}))
    assert [one["content"] for one in plan.for_module["files"]] == [None, MANIFEST]


def test_a_share_of_nodes_that_others_have_set_since_stays(changed: Found, golden: Golden) -> None:
    text = (changed.files[CONFIG_PATH] or "").replace("Score: 100", "Score: 7")
    plan = absent(replace(changed, files={**changed.files, CONFIG_PATH: text}))
    assert yaml.safe_load(plan.for_module["files"][0]["content"])["percentageOfNodesToScore"] == 7
    golden("\n".join(plan.notes))


def test_without_a_journal_our_own_volume_or_path_tells_that_the_flag_is_ours(changed: Found, golden: Golden) -> None:
    plan = absent(forgotten(changed))
    golden("\n".join(plan.notes))
    back = files_done(changed, plan)
    assert "extenders" not in yaml.safe_load(back.files[CONFIG_PATH] or "")
    assert scheduler_manifest.annotation_in(back.files[MANIFEST_PATH] or "") is None
    # Made when the setting was another path.
    moved = replace(UNTOUCHED, files={MANIFEST_PATH: MANIFEST, "/former/config.yaml": None, CONFIG_PATH: None})
    moved = files_done(moved, plan_present(MANIFEST_PATH, "/former/config.yaml", moved, TLS))
    assert f"/former/config.yaml has settings of others, so {MANIFEST_PATH} still names it" in absent(forgotten(moved)).notes
    start = with_others_config()
    theirs = files_done(start, present(start))
    plan = absent(forgotten(theirs))
    assert plan.notes[1:] == [f"{MANIFEST_PATH} is not in the journal: only our part is taken out"]
    assert read_manifest(plan.for_module["files"][-1]["content"]).flags["config"] == "/config/scheduler.yaml"


def test_kubeadms_part_that_others_have_changed_loses_ours_and_that_of_another_host_goes_silently(changed: Found, golden: Golden) -> None:
    edited = replace(changed, cluster=CLUSTER_WITH_US.replace("v1.36.3", "v1.37.0"))
    plan = absent(edited)
    assert plan.for_module["cluster"]["content"] == CLUSTER.replace("v1.36.3", "v1.37.0")
    golden("\n".join(plan.notes))
    # As on the second control plane, whose journal does not know of it; and where no scheduler is left on this host.
    journal = {path: entry for path, entry in changed.journal.items() if path != kubeadm.PATH}
    for files in (changed.files, {**changed.files, MANIFEST_PATH: None}, {**changed.files, MANIFEST_PATH: MANIFEST}):
        plan = absent(replace(changed, journal=journal, files=files))
        assert plan.for_module["cluster"]["content"] == CLUSTER
        assert [note for note in plan.notes if kubeadm.PATH in note] == []
    plan = absent(replace(changed, others=["a", "b"]))
    assert files_done(changed, plan).cluster == CLUSTER_WITH_US
    golden("\n".join(plan.notes))
    assert absent(replace(UNTOUCHED, others=["a"])).notes == []


@pytest.mark.parametrize(
    ("settings", "warned"),
    [("clientConnection:\n  qps: 5  # ask Eve\n", False), ("clientConnection: &c\n  qps: 5  # ask Eve\nother: *c\n", True)],
)
def test_an_administrators_comments_are_kept_or_said_to_be_lost(settings: str, warned: bool) -> None:
    named = MANIFEST.replace("    - --bind-address", f"    - --config={CONFIG_PATH}\n    - --bind-address")
    config = f"# ours since 2019\napiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{settings}"
    start = replace(UNTOUCHED, files={MANIFEST_PATH: named, CONFIG_PATH: config})
    plan = present(start)
    after = files_done(start, plan).files[CONFIG_PATH] or ""
    assert ("# ours since 2019" in after and "# ask Eve" in after) is not warned
    assert [words.startswith(f"{CONFIG_PATH} loses 2 comments: ") for words in plan.warnings] == [True] * warned


def test_without_a_difference_in_files_a_run_is_due_for_what_runs_or_is_half_done(changed: Found) -> None:
    def due(plan: SchedulerPlan, **answer: object) -> bool:
        as_planned = {"unfinished": False, "journal": [], "running": plan.shape, "settings": {"state": "present"}}
        return plan.is_due({**as_planned, **answer})

    converged, gone = present(changed), {"state": "absent"}
    assert due(present(UNTOUCHED))
    assert [due(converged), due(converged, unfinished=True), due(converged, running=None)] == [False, True, True]
    assert [due(converged, settings=gone, running=None), due(converged, settings=gone, journal=[{}])] == [False, True]
