# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Merging our extender into a kube-scheduler's files: everything else stays, and a second time changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _kube_scheduler as core
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kube_scheduler import SchedulerError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler_plan import Found, Plan, UnreadFile, plan_present
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.scheduler_files import CONFIG_PATH, EXTENDER, MANIFEST, MANIFEST_PATH, OTHERS_CONFIG

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
    {"apiVersion": st.just(core.API_VERSION), "kind": st.just(core.KIND)},
    optional={
        "profiles": st.lists(st.fixed_dictionaries({"schedulerName": st.text("abc", min_size=1, max_size=3)}), min_size=1, max_size=3),
        "extenders": st.lists(ENTRIES, max_size=4),
        "leaderElection": st.fixed_dictionaries({}, optional={"leaderElect": st.booleans()}),
        "parallelism": st.integers(1, 64),
    },
)


def manifest(*flags: str) -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(MANIFEST)
    pod["spec"]["containers"][0]["command"] += flags
    return pod


def with_others_config(pod: dict[str, Any]) -> dict[str, Any]:
    """--config names a file that a volume puts elsewhere than it lies on the host."""
    pod["spec"]["containers"][0]["command"].append("--config=/config/scheduler.yaml")
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "own", "mountPath": "/config/scheduler.yaml", "readOnly": True})
    pod["spec"]["volumes"].append({"name": "own", "hostPath": {"path": "/srv/k8s/sched-7.yaml", "type": "File"}})
    return pod


def is_ours(entry: dict[str, Any]) -> bool:
    names = {resource["name"] for resource in entry.get("managedResources", [])}
    return entry["urlPrefix"] == EXTENDER.url_prefix or bool(names & set(EXTENDER.managed_resources))


@given(CONFIGS)
def test_a_configuration_keeps_all_but_our_entry(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    merged = core.merge_config(config, manifest(), EXTENDER, None)
    assert config == before
    assert {key: value for key, value in merged.items() if key != "extenders"} == {k: v for k, v in before.items() if k != "extenders"}
    assert [one for one in merged["extenders"] if not is_ours(one)] == [one for one in before.get("extenders", []) if not is_ours(one)]
    assert [one for one in merged["extenders"] if is_ours(one)] == [EXTENDER.entry()]
    assert core.merge_config(merged, manifest(), EXTENDER, None) == merged


@given(st.lists(FLAGS, max_size=4), st.booleans(), st.booleans())
def test_a_manifest_keeps_all_but_what_we_add(flags: list[str], annotated: bool, has_config: bool) -> None:
    pod = with_others_config(manifest(*flags)) if has_config else manifest(*flags)
    if annotated:
        pod["metadata"]["annotations"] = {"somebody": "else"}
    before = copy.deepcopy(pod)
    location = core.config_location(pod, CONFIG_PATH)
    merged = core.merge_manifest(pod, location, "0" * 64)
    assert pod == before
    assert core.flag(merged, "config") == location.container
    assert core.merge_manifest(merged, core.config_location(merged, CONFIG_PATH), "0" * 64) == merged
    assert core.config_location(merged, CONFIG_PATH) == location
    undone = copy.deepcopy(merged)
    container = undone["spec"]["containers"][0]
    if not has_config:
        container["command"].remove(f"--config={CONFIG_PATH}")
        container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != core.VOLUME]
        undone["spec"]["volumes"] = [one for one in undone["spec"]["volumes"] if one["name"] != core.VOLUME]
    del undone["metadata"]["annotations"][core.ANNOTATION]
    if not annotated:
        del undone["metadata"]["annotations"]
    assert undone == before


def test_a_new_configuration_takes_over_the_flags_that_kube_scheduler_would_then_ignore() -> None:
    pod = manifest("--profiling=false", "--kube-api-qps=200", "--kube-api-burst", "300", "--leader-elect=false")
    assert core.merge_config(None, pod, EXTENDER, 100) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf", "qps": 200.0, "burst": 300},
        "leaderElection": {"leaderElect": False},
        "enableProfiling": False,
        "percentageOfNodesToScore": 100,
        "extenders": [
            {
                "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
                "filterVerb": "filter",
                "preemptVerb": "preempt",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": 1,
                "enableHTTPS": False,
                "httpTimeout": "1s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": [
                    {"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False},
                    {"name": "aliyun.com/gpu-count", "ignoredByScheduler": False},
                    {"name": "aliyun.com/gpu-core.percentage", "ignoredByScheduler": True},
                ],
            }
        ],
    }


def test_without_preemption_kube_scheduler_does_not_ask_for_victims() -> None:
    assert "preemptVerb" not in replace(EXTENDER, preemption=False).entry()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"apiVersion": "kubescheduler.config.k8s.io/v1beta3", "kind": "KubeSchedulerConfiguration"}, "v1beta3"),
        ({"apiVersion": "v1", "kind": "Pod"}, "found 'Pod'"),
        (["a list"], "found 'list'"),
        (
            {
                "apiVersion": core.API_VERSION,
                "kind": core.KIND,
                "extenders": [{"urlPrefix": "http://other", "bindVerb": "bind"}],
            },
            r"extenders\[0\] \(http://other\) has bindVerb",
        ),
    ],
)
def test_what_cannot_be_merged_with_is_refused_in_words(config: Any, words: str) -> None:
    with pytest.raises(SchedulerError, match=words):
        core.merge_config(config, manifest(), EXTENDER, None)


def test_a_manifest_that_is_none_of_a_scheduler_is_refused() -> None:
    pod = manifest()
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "exec kube-scheduler --leader-elect"]
    with pytest.raises(SchedulerError, match="one container whose command is kube-scheduler; found 0"):
        core.merge_manifest(pod, core.Location(CONFIG_PATH, CONFIG_PATH), "0" * 64)
    with pytest.raises(SchedulerError, match="no hostPath volume is mounted there"):
        core.config_location(manifest("--config=/nowhere/scheduler.yaml"), CONFIG_PATH)


@pytest.mark.parametrize(
    ("flags", "config", "wanted"),
    [
        ([], {}, ("kube-system", "kube-scheduler")),
        (["--leader-elect=false"], {}, None),
        (["--leader-elect-resource-name=second"], {"leaderElection": {"resourceName": "first"}}, ("kube-system", "second")),
    ],
)
def test_the_lease_follows_the_flags(flags: list[str], config: dict[str, Any], wanted: tuple[str, str] | None) -> None:
    assert core.lease(manifest(*flags), config) == (None if wanted is None else core.Lease(*wanted))


def test_the_candidate_runs_with_the_manifests_own_flags_but_its_configuration() -> None:
    command = core.candidate_command(with_others_config(manifest("--v=4")))
    assert command[0] == "kube-scheduler"
    assert command[-3:] == ["--v=4", "--config=/gpushare-candidate.yaml", "--write-config-to=/dev/stdout"]
    assert "--config=/config/scheduler.yaml" not in command


# The plan for a host: texts in, texts out.


def plan(files: dict[str, str | None]) -> Plan:
    return plan_present(MANIFEST_PATH, CONFIG_PATH, Found(files), EXTENDER)


def after(made: Plan) -> dict[str, str | None]:
    return {one["path"]: one["content"] for one in made.for_module["files"]}


def test_a_fresh_host_gets_both_files_configuration_first_and_then_nothing() -> None:
    made = plan({MANIFEST_PATH: MANIFEST, CONFIG_PATH: None})
    assert made.changed
    assert [one["path"] for one in made.for_module["files"]] == [CONFIG_PATH, MANIFEST_PATH]
    again = plan(after(made))
    assert not again.changed
    assert again.diff == []


def test_every_line_of_kubeadms_manifest_stays() -> None:
    text = after(plan({MANIFEST_PATH: MANIFEST, CONFIG_PATH: None}))[MANIFEST_PATH] or ""
    kept = iter(text.splitlines())
    assert all(line in kept for line in MANIFEST.splitlines())  # in this order
    assert len(text.splitlines()) == len(MANIFEST.splitlines()) + 1 + 3 + 4 + 2  # flag, mount, volume, annotation


def test_somebody_elses_configuration_is_found_through_its_volume_and_keeps_its_comments() -> None:
    text = yaml.safe_dump(with_others_config(manifest()), sort_keys=False)
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


def test_the_hash_on_the_host_is_found_without_a_yaml_parser() -> None:
    made = after(plan({MANIFEST_PATH: MANIFEST, CONFIG_PATH: None}))[MANIFEST_PATH] or ""
    assert core.annotation_in(made) == yaml.safe_load(made)["metadata"]["annotations"][core.ANNOTATION]
    assert core.annotation_in(MANIFEST) is None


@pytest.mark.parametrize("line", ["- --config=/a/b.yaml", '- "--config=/a/b.yaml"', "- --config\n    - /a/b.yaml", "[--config, /a/b.yaml]"])
def test_files_that_the_text_may_mean_are_sent_along(line: str) -> None:
    assert core.config_paths(f"command:\n    {line}\n    - --kubeconfig=/x\n") == ["/a/b.yaml"]
