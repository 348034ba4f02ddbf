# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Merging our extender into a kube-scheduler's files: everything else stays, and a second time changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import manifest as scheduler_manifest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import releases, scheduler_config
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import (
    Location,
    SchedulerError,
    SchedulerManifest,
    merge_manifest,
    unmerge_manifest,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, SchedulerPlan, UnreadFile, plan_present
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.unplan import Percentage, without_extender
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.fakes.plugins.scheduler.manifests import CONFIG_PATH, EXTENDER, MANIFEST, MANIFEST_PATH, OTHERS_CONFIG, RESOURCES, TLS
from unit.golden import Golden

FLAGS = st.sampled_from(
    ["--v=4", "--leader-elect=false", "--profiling=false", "--kube-api-qps=200", "--feature-gates=A=true", "--secure-port=10259"]
)
NAMES = st.sampled_from(["example.com/fpga", "example.com/nic", "aliyun.com/gpu-mem", "aliyun.com/gpu-count"])
ENTRIES = st.builds(
    lambda prefix, names, extra: {"urlPrefix": prefix, "managedResources": [{"name": name} for name in names], **extra},
    st.sampled_from(["http://127.0.0.1:1/a", "https://host/b", EXTENDER.url_prefix]),
    st.lists(NAMES, max_size=2, unique=True),
    st.dictionaries(st.sampled_from(["weight", "httpTimeout", "prioritizeVerb"]), st.text("abc", max_size=3), max_size=2),
)
CONFIGS = st.fixed_dictionaries(
    {"apiVersion": st.just(releases.V1), "kind": st.just(scheduler_config.KIND)},
    optional={
        "profiles": st.lists(st.fixed_dictionaries({"schedulerName": st.text("abc", min_size=1, max_size=3)}), min_size=1, max_size=3),
        "extenders": st.lists(ENTRIES, max_size=4),
        "leaderElection": st.fixed_dictionaries({}, optional={"leaderElect": st.booleans()}),
        "parallelism": st.integers(1, 64),
    },
)


def static_pod(*flags: str) -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(MANIFEST)
    pod["spec"]["containers"][0]["command"] += flags
    return pod


def manifest(*flags: str) -> SchedulerManifest:
    return SchedulerManifest.parsed(static_pod(*flags))


def with_others_config(pod: dict[str, Any]) -> dict[str, Any]:
    """--config names a file that a volume puts elsewhere than it lies on the host."""
    pod["spec"]["containers"][0]["command"].append("--config=/config/scheduler.yaml")
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "own", "mountPath": "/config/scheduler.yaml", "readOnly": True})
    pod["spec"]["volumes"].append({"name": "own", "hostPath": {"path": "/srv/k8s/sched-7.yaml", "type": "File"}})
    return pod


def is_ours(entry: dict[str, Any]) -> bool:
    names = {resource["name"] for resource in entry.get("managedResources", [])}
    return entry["urlPrefix"] == EXTENDER.url_prefix or bool(names & set(EXTENDER.managed_resources))


@settings(max_examples=40)
@given(CONFIGS)
def test_a_configuration_keeps_all_but_our_entry(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    merged = scheduler_config.merge_config(config, manifest(), EXTENDER, None)
    assert config == before
    assert {key: value for key, value in merged.items() if key != "extenders"} == {k: v for k, v in before.items() if k != "extenders"}
    assert [one for one in merged["extenders"] if not is_ours(one)] == [one for one in before.get("extenders", []) if not is_ours(one)]
    assert [one for one in merged["extenders"] if is_ours(one)] == [EXTENDER.entry()]
    assert scheduler_config.merge_config(merged, manifest(), EXTENDER, None) == merged


@settings(max_examples=40)
@given(st.lists(FLAGS, max_size=4), st.booleans(), st.booleans())
def test_a_manifest_keeps_all_but_what_we_add(flags: list[str], annotated: bool, has_config: bool) -> None:
    pod = with_others_config(static_pod(*flags)) if has_config else static_pod(*flags)
    if annotated:
        pod["metadata"]["annotations"] = {"somebody": "else"}
    before = copy.deepcopy(pod)
    location = SchedulerManifest.parsed(pod).location(CONFIG_PATH)
    merged = SchedulerManifest.parsed(merge_manifest(SchedulerManifest.parsed(pod), location, "0" * 64))
    assert pod == before
    assert merged.flags["config"] == location.container
    assert merge_manifest(merged, merged.location(CONFIG_PATH), "0" * 64) == merged.pod
    assert merged.location(CONFIG_PATH) == location
    undone = copy.deepcopy(merged.pod)
    container = undone["spec"]["containers"][0]
    if not has_config:
        container["command"].remove(f"--config={CONFIG_PATH}")
        container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != scheduler_manifest.VOLUME]
        undone["spec"]["volumes"] = [one for one in undone["spec"]["volumes"] if one["name"] != scheduler_manifest.VOLUME]
    del undone["metadata"]["annotations"][ANNOTATION_SCHEDULER_CONFIG]
    if not annotated:
        del undone["metadata"]["annotations"]
    assert undone == before


def test_the_entry_says_all_that_the_extender_does() -> None:
    entry = {
        "urlPrefix": "https://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 10,
        "enableHTTPS": True,
        "httpTimeout": "1s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False},
            {"name": "aliyun.com/gpu-count", "ignoredByScheduler": False},
            {"name": "aliyun.com/gpu-core.percentage", "ignoredByScheduler": True},
        ],
        "tlsConfig": {
            "certFile": "/etc/gpushare/pki/scheduler/tls.crt",
            "keyFile": "/etc/gpushare/pki/scheduler/tls.key",
            "caFile": "/etc/gpushare/pki/scheduler/ca.crt",
        },
    }
    assert TLS.entry() == entry
    assert replace(TLS, preemption=False).entry() == {key: value for key, value in entry.items() if key != "preemptVerb"}
    plain = {**entry, "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler", "enableHTTPS": False}
    assert EXTENDER.entry() == {key: value for key, value in plain.items() if key != "tlsConfig"}


@pytest.mark.parametrize(
    ("config", "release", "words"),
    [
        ({"apiVersion": "kubescheduler.config.k8s.io/v1beta3", "kind": "KubeSchedulerConfiguration"}, (1, 36), "v1beta3"),
        ({"apiVersion": "v2", "kind": "KubeSchedulerConfiguration"}, None, r"an apiVersion of Kubernetes \(componentconfig/v1alpha1, "),
        ({"apiVersion": "v1", "kind": "Pod"}, (1, 36), "found 'Pod'"),
        (["a list"], (1, 36), "found 'list'"),
    ],
)
def test_what_cannot_be_merged_with_is_rejected_in_words(config: Any, release: releases.Release | None, words: str) -> None:
    with pytest.raises(SchedulerError, match=words):
        scheduler_config.merge_config(config, manifest(), EXTENDER, None, release)


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, {}),
        ({"httpTimeout": "0.9s100ms", "filterVerb": "other", "urlPrefix": "http://other"}, {}),
        ({"httpTimeout": "999ms1000us"}, {}),
        ({"httpTimeout": "999ms999999ns"}, {"httpTimeout": ("999ms999999ns", "1s")}),
        ({"httpTimeout": "soon"}, {"httpTimeout": ("soon", "1s")}),
        ({"prioritizeVerb": "x" * 200}, {"prioritizeVerb": ("x" * 120, "prioritize")}),
        ({"weight": None, "preemptVerb": None}, {"weight": ("None", "10"), "preemptVerb": ("None", "preempt")}),
    ],
)
def test_where_an_entry_is_not_what_we_write_is_said(changed: dict[str, Any], differing: dict[str, tuple[str, str]]) -> None:
    for entry in (EXTENDER.entry(), scheduler_config.policy_entry(EXTENDER)):
        assert scheduler_config.differing({**entry, **changed}, EXTENDER) == differing
    bare = scheduler_config.differing({}, replace(EXTENDER, weight=1))
    assert (bare["weight"], bare["httpTimeout"]) == (("0", "1"), ("5s", "1s"))


def test_a_configuration_opens_a_port_up_to_1_22_only() -> None:
    assert [scheduler_config.opens_port(manifest("--port=0"), release) for release in ((1, 22), (1, 23), None)] == [True, False, False]
    assert "healthzBindAddress" not in scheduler_config.merge_config(None, manifest(), EXTENDER, None, (1, 22))
    old = {"apiVersion": releases.newest((1, 22)), "metricsBindAddress": "127.0.0.1:10251"}
    (_step,) = [words for words in scheduler_config.next_upgrade(old, (1, 22), "/c") if "metricsBindAddress, which /c has" in words]
    assert scheduler_config.renewed(old, None) == old


def test_a_configuration_that_no_volume_carries_is_rejected(golden: Golden) -> None:
    with golden.raised(SchedulerError):
        manifest("--config=/nowhere/scheduler.yaml").location(CONFIG_PATH)


# The plan for a host: texts in, texts out.


def plan(files: dict[str, str | None]) -> SchedulerPlan:
    return plan_present(MANIFEST_PATH, CONFIG_PATH, Found(files), EXTENDER)


def after(made: SchedulerPlan) -> dict[str, str | None]:
    return {one["path"]: one["content"] for one in made.for_module["files"]}


def test_every_line_of_kubeadms_manifest_stays() -> None:
    text = after(plan({MANIFEST_PATH: MANIFEST, CONFIG_PATH: None}))[MANIFEST_PATH] or ""
    kept = iter(text.splitlines())
    assert all(line in kept for line in MANIFEST.splitlines())  # in this order
    assert len(text.splitlines()) == len(MANIFEST.splitlines()) + 1 + 3 + 4 + 2  # flag, mount, volume, annotation


def test_somebody_elses_configuration_is_found_through_its_volume_and_keeps_its_comments() -> None:
    text = yaml.safe_dump(with_others_config(static_pod()), sort_keys=False)
    with pytest.raises(UnreadFile) as unread:
        plan({MANIFEST_PATH: text, CONFIG_PATH: None})
    assert unread.value.path == "/srv/k8s/sched-7.yaml"
    made = plan({MANIFEST_PATH: text, "/srv/k8s/sched-7.yaml": OTHERS_CONFIG})
    config = after(made)["/srv/k8s/sched-7.yaml"] or ""
    assert config.startswith(OTHERS_CONFIG)
    assert not plan(after(made)).changed


def test_a_configuration_that_somebody_changes_restarts_the_scheduler_through_the_manifest() -> None:
    files = after(plan({MANIFEST_PATH: MANIFEST, CONFIG_PATH: None}))
    files[CONFIG_PATH] = (files[CONFIG_PATH] or "") + "parallelism: 4\n"
    made = plan(files)
    assert [diff["after_header"] for diff in made.diff] == [MANIFEST_PATH]


@pytest.mark.parametrize("line", ["- --config=/a/b.yaml", '- "--config=/a/b.yaml"', "- --config\n    - /a/b.yaml", "[--config, /a/b.yaml]"])
def test_files_that_the_text_may_mean_are_sent_along(line: str) -> None:
    assert scheduler_manifest.config_paths(f"command:\n    {line}\n    - --kubeconfig=/x\n") == ["/a/b.yaml"]


# One by one.


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("", None),
        ("--config=/a", "/a"),
        ("-config=/a", "/a"),
        ("--config /a", "/a"),
        ("-config /a --v=4", "/a"),
        ("--config=", ""),
        ("--config", "true"),
        ("--config --v=4", "true"),
        ("--config=/a --config /b", "/b"),
        ("--config=/a=b", "/a=b"),
        ("---config=/a --configs=/b config=/c", None),
    ],
)
def test_a_flag_is_read_as_kube_scheduler_reads_it(line: str, value: str | None) -> None:
    assert manifest(*line.split()).flags.get("config") == value
    pod = static_pod()
    pod["spec"]["containers"][0].update(command=["kube-scheduler"], args=line.split() or None)
    parsed = SchedulerManifest.parsed(pod)
    assert parsed.flags.get("config") == value
    assert parsed.words == ["kube-scheduler", *line.split()]


def mounted(*mounts: tuple[str, str], **more: Any) -> dict[str, Any]:
    """A static pod with these hostPath volumes: (on the host, in the container)."""
    pod = static_pod()
    pod["spec"]["volumes"] = [{"name": str(place), "hostPath": {"path": host}} for place, (host, _inside) in enumerate(mounts)]
    inside = [{"name": str(place), "mountPath": path, **more} for place, (_host, path) in enumerate(mounts)]
    pod["spec"]["containers"][0]["volumeMounts"] = inside
    return pod


@pytest.mark.parametrize(
    ("mounts", "host"),
    [
        ([], "/default/c.yaml"),
        ([("/h", "/default/c.yaml")], "/h"),
        ([("/h/", "/default/")], "/h/c.yaml"),
        ([("/h", "/def"), ("/i", "/default/c")], "/default/c.yaml"),
        ([("/a/long/path", "/"), ("/i", "/default"), ("/j", "/other")], "/i/c.yaml"),
        ([("/i", "/default"), ("/h", "/")], "/i/c.yaml"),
        ([("/h", "/")], "/h/default/c.yaml"),
    ],
)
def test_a_file_lies_where_the_innermost_volume_has_it(mounts: list[tuple[str, str]], host: str) -> None:
    assert SchedulerManifest.parsed(mounted(*mounts)).location("/default/c.yaml") == Location(host, "/default/c.yaml")


def test_what_is_no_volume_of_the_host_carries_no_file() -> None:
    pod = mounted(("/h", "/default"), subPath="x")
    assert SchedulerManifest.parsed(pod).mounts == []
    pod = mounted(("/h", "/default"))
    pod["spec"]["volumes"] = [{"name": "0", "emptyDir": {}}, {"name": "unused", "hostPath": {"path": "/u"}}]
    assert SchedulerManifest.parsed(pod).mounts == []
    pod["spec"].pop("volumes")
    assert SchedulerManifest.parsed(pod).mounts == []
    pod["spec"]["containers"][0]["volumeMounts"] = None
    assert SchedulerManifest.parsed(pod).location("/default/c.yaml").host == "/default/c.yaml"
    parsed = SchedulerManifest.parsed(mounted(("/b", "/2"), ("/a", "/1")))
    assert parsed.shape == {"words": parsed.words, "mounts": [["/a", "/1"], ["/b", "/2"]]}


def config(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": releases.V1, "kind": scheduler_config.KIND, "extenders": list(entries), **more}


def test_our_entry_stays_in_its_place_and_is_there_once() -> None:
    other, gone = {"urlPrefix": "http://other"}, {"urlPrefix": "http://old", "managedResources": [{"name": RESOURCES[1]}]}
    stale = {"urlPrefix": EXTENDER.url_prefix, "bindVerb": "bind"}
    merged = scheduler_config.merge_config(config(other, gone, stale, other), manifest(), EXTENDER, 0)
    assert merged == config(other, EXTENDER.entry(), other, percentageOfNodesToScore=0)
    assert scheduler_config.merge_config(config(other), manifest(), EXTENDER, None) == config(other, EXTENDER.entry())
    assert scheduler_config.merge_config({**config(), "extenders": None}, manifest(), EXTENDER, None) == config(EXTENDER.entry())
    with pytest.raises(SchedulerError, match=r"^extenders\[2\] \(None\) has bindVerb 'b', and"):
        scheduler_config.merge_config(config(stale, other, {"bindVerb": "b"}), manifest(), EXTENDER, None)


def test_every_flag_that_a_configuration_replaces_is_taken_over(golden: Golden) -> None:
    flags = {
        "kubeconfig": "/k",
        "kube-api-content-type": "json",
        "kube-api-qps": "1.5",
        "kube-api-burst": "7",
        "profiling": "T",
        "contention-profiling": "0",
        "leader-elect": "false",
    }
    pod = manifest(*(f"--{name}={value}" for name, value in flags.items()))
    assert scheduler_config.merge_config(None, pod, EXTENDER, 100) == {
        "apiVersion": releases.V1,
        "kind": scheduler_config.KIND,
        "clientConnection": {"kubeconfig": "/k", "contentType": "json", "qps": 1.5, "burst": 7},
        "enableProfiling": True,
        "enableContentionProfiling": False,
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "extenders": [EXTENDER.entry()],
    }
    bare = SchedulerManifest.parsed({"kind": "Pod", "spec": {"containers": [{"command": ["/usr/bin/kube-scheduler"]}]}})
    assert bare.image == ""
    made = scheduler_config.merge_config(None, bare, EXTENDER, None)
    assert (made["clientConnection"], made["leaderElection"]) == ({"kubeconfig": "/etc/kubernetes/scheduler.conf"}, {"leaderElect": True})
    with golden.raised(SchedulerError):
        scheduler_config.merge_config(None, manifest("--profiling=yes"), EXTENDER, None)


def test_a_manifest_without_any_volume_gets_ours_and_loses_them_again() -> None:
    bare: dict[str, Any] = {"kind": "Pod", "metadata": None, "spec": {"containers": [{"command": ["kube-scheduler"], "args": ["--v=4"]}]}}
    pod = merge_manifest(SchedulerManifest.parsed(bare), Location("/h/c.yaml", "/c/c.yaml"), "x", "/pki")
    merged, container = SchedulerManifest.parsed(pod), pod["spec"]["containers"][0]
    assert (container["command"], container["args"]) == (["kube-scheduler"], ["--v=4", "--config=/c/c.yaml"])
    assert pod["spec"]["volumes"] == [
        {"name": scheduler_manifest.VOLUME, "hostPath": {"path": "/h", "type": "DirectoryOrCreate"}},
        {"name": scheduler_manifest.TLS_VOLUME, "hostPath": {"path": "/pki", "type": "Directory"}},
    ]
    assert container["volumeMounts"] == [
        {"name": scheduler_manifest.VOLUME, "mountPath": "/c", "readOnly": True},
        {"name": scheduler_manifest.TLS_VOLUME, "mountPath": "/pki", "readOnly": True},
    ]
    assert pod["metadata"] == {"annotations": {ANNOTATION_SCHEDULER_CONFIG: "x"}}
    # A volume of ours that leads elsewhere is put right in its place.
    moved = merge_manifest(merged, merged.location("/c/c.yaml"), "x", "/new")
    assert [one["hostPath"]["path"] for one in moved["spec"]["volumes"]] == ["/h", "/new"]
    plain = merge_manifest(merged, merged.location("/c/c.yaml"), "x")
    assert [one["name"] for one in plain["spec"]["volumes"]] == [scheduler_manifest.VOLUME]
    assert unmerge_manifest(merged, "/c/c.yaml") == {**bare, "metadata": {}}
    assert unmerge_manifest(SchedulerManifest.parsed(bare), "/c/c.yaml") == bare


def test_without_us_only_what_is_ours_goes() -> None:
    pod = static_pod("--config=/theirs")
    pod["metadata"]["annotations"] = {ANNOTATION_SCHEDULER_CONFIG: "x", "own": "y"}
    assert unmerge_manifest(SchedulerManifest.parsed(pod), "/ours") == {**pod, "metadata": {**pod["metadata"], "annotations": {"own": "y"}}}
    named = merge_manifest(manifest(), Location("/h/c", "/c/c"), "x", "/pki")
    kept = unmerge_manifest(SchedulerManifest.parsed(named), None)
    assert [one["name"] for one in kept["spec"]["volumes"]] == ["kubeconfig", scheduler_manifest.VOLUME]
    assert SchedulerManifest.parsed(kept).flags["config"] == "/c/c"
    pod["metadata"] = None
    assert unmerge_manifest(SchedulerManifest.parsed(pod), None) == pod
    pod["metadata"] = {"annotations": {}}
    assert unmerge_manifest(SchedulerManifest.parsed(pod), None) == pod


@pytest.mark.parametrize(
    ("percentage", "left"),
    [(None, {"percentageOfNodesToScore": 9}), (Percentage(None), {}), (Percentage(7), {"percentageOfNodesToScore": 7})],
)
def test_a_configuration_without_our_extender(percentage: Percentage | None, left: dict[str, int]) -> None:
    other = {"urlPrefix": "http://other"}
    ours = config(other, EXTENDER.entry(), percentageOfNodesToScore=9)
    before = copy.deepcopy(ours)
    assert without_extender(ours, EXTENDER, percentage) == config(other, **left)
    assert ours == before
    alone = without_extender(config(EXTENDER.entry(), percentageOfNodesToScore=9), EXTENDER, percentage)
    assert alone == {"apiVersion": releases.V1, "kind": scheduler_config.KIND, **left}
    assert without_extender(config(), EXTENDER, None, {}) == config()
    assert without_extender({**config(), "extenders": None}, EXTENDER, None) == {**config(), "extenders": None}
    with pytest.raises(SchedulerError, match="found 'Pod'"):
        without_extender({"kind": "Pod"}, EXTENDER, None)


@pytest.mark.parametrize(
    ("flags", "found", "wanted"),
    [
        (["--leader-elect=false"], {}, None),
        (["--leader-elect-resource-name=second"], {"leaderElection": {"resourceName": "first"}}, ("kube-system", "second")),
        ([], {"leaderElection": {"leaderElect": False}}, None),
        (["--leader-elect"], {"leaderElection": {"leaderElect": False}}, ("kube-system", "kube-scheduler")),
        (["--leader-elect=F"], {"leaderElection": {"leaderElect": True}}, None),
        ([], {"leaderElection": None}, ("kube-system", "kube-scheduler")),
        ([], {"leaderElection": {"resourceNamespace": "n", "resourceName": "m"}}, ("n", "m")),
        (["--leader-elect-resource-namespace=f"], {"leaderElection": {"resourceNamespace": "n"}}, ("f", "kube-scheduler")),
    ],
)
def test_a_flag_wins_over_the_configuration(flags: list[str], found: dict[str, Any], wanted: tuple[str, str] | None) -> None:
    pod = static_pod(*flags)
    pod["spec"]["containers"][0]["command"].remove("--leader-elect=true")
    lock = scheduler_config.lease(SchedulerManifest.parsed(pod), found)
    assert lock == (None if wanted is None else scheduler_config.SchedulerLock(*wanted))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("", ""),
        ("--v=4", "--v=4"),
        ("--config=/a --v=4", "--v=4 --config=/gpushare-candidate.yaml"),
        ("--config /a --v=4", "--v=4 --config=/gpushare-candidate.yaml"),
        ("-config=/a -config /b --configs=/c", "--configs=/c --config=/gpushare-candidate.yaml"),
    ],
)
def test_the_candidates_command_is_the_schedulers_with_another_configuration(line: str, command: str) -> None:
    pod = static_pod()
    pod["spec"]["containers"][0]["command"] = ["kube-scheduler", *line.split()]
    made = scheduler_manifest.candidate_command(SchedulerManifest.parsed(pod))
    assert made == ["kube-scheduler", *command.split(), "--write-config-to=/dev/stdout"]


def test_only_one_container_may_be_the_scheduler(golden: Golden) -> None:
    pod = static_pod()
    pod["spec"]["containers"].insert(0, {"command": ["sh"], "image": "x"})
    assert SchedulerManifest.parsed(pod).image == "registry.k8s.io/kube-scheduler:v1.36.3"
    pod["spec"]["containers"].append({"args": ["/bin/kube-scheduler"]})
    with pytest.raises(SchedulerError, match=r"found 2$"):
        SchedulerManifest.parsed(pod)
    shell = {"command": ["sh", "-c", "exec kube-scheduler --leader-elect"]}
    for other in ({"kind": "Pod"}, {"kind": "Pod", "spec": {"containers": None}}, {"kind": "Pod", "spec": {"containers": [shell]}}):
        with pytest.raises(SchedulerError, match=r"found 0$"):
            SchedulerManifest.parsed(other)
    for wrong in ({"kind": "Deployment"}, ["a list"]):
        with golden.raised(SchedulerError):
            SchedulerManifest.parsed(wrong)


@pytest.mark.parametrize(("release", "by"), [(None, "leases"), ((1, 16), "endpoints"), ((1, 17), "leases")])
def test_schedulers_before_1_17_elect_their_leader_by_endpoints(release: releases.Release | None, by: str) -> None:
    lock = scheduler_config.lease(SchedulerManifest.parsed(static_pod()), {}, release)
    assert lock is not None
    assert lock.by == by
