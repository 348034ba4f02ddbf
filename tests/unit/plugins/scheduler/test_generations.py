# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Schedulers of every generation: what they become with our extender, what of theirs stays, and what they become again without it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import kubeadm, proof, releases
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.candidate import CandidateError, check
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import SchedulerError, annotation_in
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.policy import merge_policy, unmerge_policy
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, read_manifest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.wiring import policy_text

from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH, POLICY_PATH, RICH_POLICY, STATES, configuration, manifest
from unit.fakes.plugins.scheduler.manifests import EXTENDER, TLS
from unit.fakes.plugins.scheduler.planned import EXPECTED, GROUP, NEW_POLICY, done, plan, state
from unit.golden import Golden


def read(found: Found, path: str) -> Any:
    text = (found.policy.text if not path and found.policy else found.files[path]) or ""
    return next(yaml.safe_load_all(text), None)


@pytest.mark.parametrize("name", STATES)
def test_a_text_is_in_the_language_that_kubernetes_expects_by_its_first_character(name: str) -> None:
    before = state(name)
    after = done(before, plan(before))
    for path, text in {**before.files, kubeadm.PATH: before.cluster}.items():
        now = after.cluster if path == kubeadm.PATH else after.files[path]
        assert _is_json(now) if text is not None and _is_json(text) else path == NEW_POLICY or not str(now).startswith("{")


def _is_json(text: str | None) -> bool:
    try:
        return isinstance(json.loads(text or ""), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("name", STATES)
def test_each_generation_gets_our_extender_where_it_reads_extenders_and_gives_back_every_byte(name: str) -> None:
    path, version, flag = EXPECTED[name]
    before = state(name)
    after = done(before, plan(before))
    wired = read(after, path)
    assert wired["apiVersion"] == version
    (ours,) = [entry for entry in wired["extenders"] if entry["urlPrefix"] == TLS.url_prefix]
    https, timeout = ("enableHttps", 1_000_000_000) if version == "v1" else ("enableHTTPS", "1s")
    assert (ours[https], ours["httpTimeout"], ours["bindVerb"]) == (True, timeout, "bind")
    pod = read_manifest(after.files[MANIFEST_PATH] or "")
    assert flag in pod.flags
    assert ("/etc/gpushare/pki/scheduler", "/etc/gpushare/pki/scheduler") in pod.mounts
    text = after.policy.text if not path and after.policy else after.files[path]
    assert annotation_in(after.files[MANIFEST_PATH] or "") == digest(str(text).encode())
    again = plan(after)
    assert (again.changed, again.diff) == (False, [])
    gone = done(after, plan(after, "absent"))
    assert {file: text for file, text in gone.files.items() if text is not None} == STATES[name][0]
    assert (gone.cluster, gone.policy.text if gone.policy else None) == STATES[name][1:]


@pytest.mark.parametrize("name", STATES)
def test_what_was_there_stays(name: str) -> None:
    path = EXPECTED[name][0]
    before = state(name)
    after = done(before, plan(before))
    was, now = (read(before, path) if path in before.files or not path else None) or {}, read(after, path)
    for key, value in was.items():
        if key != "extenders":
            assert now[key] == value
    others = [entry for entry in was.get("extenders", ()) if "gpushare" not in entry["urlPrefix"]]
    assert [entry for entry in now["extenders"] if "gpushare" not in entry["urlPrefix"]] == others
    words_before, words = (read_manifest(found.files[MANIFEST_PATH] or "").words for found in (before, after))
    assert [word for word in words if word in words_before] == words_before
    if "#" in str(before.files.get(path)):
        assert (after.files[path] or "").count("#") == (before.files[path] or "").count("#")


POLICY = {"apiVersion": "v1", "kind": "Policy"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("text", "text"),
        (["x"], "x"),
        ({**POLICY, "kind": "ConfigMap"}, "ConfigMap"),
        ({"predicates": [{"name": "x" * 90}], **POLICY, "apiVersion": "v1alpha1"}, "v1alpha1"),
        ({"kind": "Policy"}, "None"),
        ({"apiVersion": "v1"}, "None"),
        ({**POLICY, "extenders": {"urlPrefix": "http://x"}}, "list of extenders"),
    ],
)
def test_what_is_no_policy_is_rejected_and_named(found: Any, words: str) -> None:
    for change in (merge_policy, unmerge_policy):
        with pytest.raises(SchedulerError, match=words):
            change(found, TLS)


@pytest.mark.parametrize("extenders", [{}, {"extenders": None}, {"extenders": []}])
def test_a_policy_without_extenders_gets_ours(extenders: dict[str, Any]) -> None:
    (ours,) = merge_policy({**POLICY, **extenders}, TLS)["extenders"]
    assert ours["urlPrefix"] == TLS.url_prefix


def test_kubeadm_writes_the_flag_of_a_policy_again() -> None:
    before = state("kubeadm 1.15")
    scheduler = yaml.safe_load(done(before, plan(before)).cluster or "")["scheduler"]
    assert scheduler["extraArgs"] == {"policy-config-file": NEW_POLICY}
    assert [one["mountPath"] for one in scheduler["extraVolumes"]] == ["/etc/kubernetes/gpushare", "/etc/gpushare/pki/scheduler"]


def test_the_originals_extender_is_replaced_in_place() -> None:
    before = state("seed 000")
    policy = json.loads(done(before, plan(before)).files[POLICY_PATH] or "")
    assert [entry["urlPrefix"] for entry in policy["extenders"]] == [TLS.url_prefix]


def test_a_policy_that_others_have_changed_loses_only_our_part() -> None:
    before = state("1.22 with a rich policy")
    after = done(before, plan(before))
    policy = json.loads(after.files[POLICY_PATH] or "")
    policy["priorities"].append({"name": "NodeAffinityPriority", "weight": 3})
    edited = replace(after, files={**after.files, POLICY_PATH: json.dumps(policy, indent=4)})
    gone = plan(edited, "absent")
    kept = json.loads(done(edited, gone).files[POLICY_PATH] or "")
    assert kept == {**json.loads(RICH_POLICY), "priorities": policy["priorities"]}
    assert any("only our part is taken out" in note for note in gone.notes)
    assert plan(done(edited, gone), "absent").notes == []


def test_a_config_map_that_others_have_changed_loses_only_our_part() -> None:
    before = state("1.16 with a policy ConfigMap")
    after = done(before, plan(before))
    assert before.policy is not None
    assert after.policy is not None
    policy = {**json.loads(after.policy.text), "hardPodAffinitySymmetricWeight": 7}
    edited = replace(after, policy=replace(after.policy, text=json.dumps(policy)))
    for journal, noted in ((after.journal, 1), ({}, 0)):  # without a journal, another control plane has put it in
        gone = plan(replace(edited, journal=journal), "absent")
        left = done(edited, gone).policy
        assert left is not None
        assert json.loads(left.text) == {**json.loads(before.policy.text), "hardPodAffinitySymmetricWeight": 7}
        assert sum("only our part is taken out" in note and "scheduler-policy" in note for note in gone.notes) == noted
        again = plan(replace(edited, journal=journal, policy=left), "absent")
        assert not any("scheduler-policy" in note for note in again.notes)


def test_a_scheduler_of_an_unknown_release_gets_the_newest_configuration() -> None:
    text = manifest("1.36.3", "--policy-config-file=/p.json").replace(":v1.36.3", ":latest")
    before = Found({MANIFEST_PATH: text, CONFIG_PATH: None})
    after = done(before, plan(before))
    assert read(after, CONFIG_PATH)["apiVersion"] == f"{GROUP}v1"
    assert plan(after).diff == []


def test_a_configuration_of_1_18_has_extenders_in_the_form_of_a_policy() -> None:
    text = manifest("1.18.20", "--config=/s/c.yaml", mounts=(("/s", "/s"),))
    before = Found({MANIFEST_PATH: text, "/s/c.yaml": configuration("v1alpha2")})
    (ours,) = read(done(before, plan(before)), "/s/c.yaml")["extenders"]
    assert (ours["enableHttps"], ours["httpTimeout"]) == (True, 1_000_000_000)


def test_a_cluster_of_kubeadm_before_1_12_is_not_changed_and_that_is_said() -> None:
    before = replace(state("kubeadm 1.11"), cluster="apiVersion: kubeadm.k8s.io/v1alpha2\nkind: MasterConfiguration\n")
    made = plan(before)
    assert made.for_module["cluster"] is None
    assert any("v1alpha2, which is not changed" in note for note in made.notes)


@pytest.mark.parametrize("name", ["seed 000 with 1.22", "kubeadm 1.18"])
@pytest.mark.parametrize("release", ["1.22.17", "1.24.17"])
def test_a_host_is_migrated_from_a_policy_to_a_configuration_and_back_to_neither(name: str, release: str) -> None:
    before = state(name)
    with_policy = done(before, plan(before))
    policy = next(path for path, text in with_policy.files.items() if text and '"Policy"' in text)
    # The administrator has taken the flag away, or kubeadm has written the manifest of the next release.
    moved = replace(with_policy, files={**with_policy.files, MANIFEST_PATH: manifest(release)})
    made = plan(moved)
    after = done(moved, made)
    assert read(after, CONFIG_PATH)["apiVersion"] == f"{GROUP}{'v1beta2' if release == '1.22.17' else 'v1beta3'}"
    assert made.for_module["scheduler"]["kind"] == "KubeSchedulerConfiguration"
    # kube-scheduler does not start with the flag that we have had kubeadm write.
    scheduler = yaml.safe_load(after.cluster or "")["scheduler"]
    assert scheduler["extraArgs"] == {"config": CONFIG_PATH}
    assert {one["mountPath"] for one in scheduler["extraVolumes"]} == {"/etc/kubernetes/gpushare", "/etc/gpushare/pki/scheduler"}
    assert not any("--policy-config-file" in words for words in made.warnings)
    assert plan(after).diff == []
    gone = done(after, plan(after, "absent"))
    assert gone.files[MANIFEST_PATH] == manifest(release)
    assert (gone.files[CONFIG_PATH], gone.files[policy]) == (None, before.files.get(policy))
    assert gone.cluster == before.cluster


def test_a_policy_that_somebody_else_has_kubeadm_write_stays_and_is_reported_before_the_upgrade_that_ends_with_it() -> None:
    before = state("seed 000 with 1.22")
    theirs = str(before.cluster).replace("scheduler: {}", f"scheduler:\n  extraArgs:\n    policy-config-file: {POLICY_PATH}")
    made = plan(replace(before, cluster=theirs))
    assert any("kube-scheduler from 1.23 on does not start with --policy-config-file" in words for words in made.warnings)
    with_policy = done(replace(before, cluster=theirs), made)
    made = plan(replace(with_policy, files={**with_policy.files, MANIFEST_PATH: manifest("1.22.17")}))
    scheduler = yaml.safe_load(done(with_policy, made).cluster or "")["scheduler"]
    assert scheduler["extraArgs"] == {"policy-config-file": POLICY_PATH, "config": CONFIG_PATH}
    assert any("has --policy-config-file for the scheduler" in words and "remove it there" in words for words in made.warnings)
    assert plan(state("kubeadm 1.18")).warnings == []


def test_a_configuration_of_ours_follows_the_release_and_one_of_others_is_reported_before_the_upgrade_that_ends_with_it(
    golden: Golden,
) -> None:
    found = state("kubeadm 1.21")
    for release, version in (("1.21.14", "v1beta1"), ("1.22.17", "v1beta2"), ("1.24.17", "v1beta3"), ("1.25.16", "v1"), ("1.36.3", "v1")):
        # As kubeadm upgrade leaves it.
        text = str(found.files[MANIFEST_PATH])
        image = text.partition("kube-scheduler:v")[2].split("\n")[0]
        found = replace(found, files={**found.files, MANIFEST_PATH: text.replace(f"kube-scheduler:v{image}", f"kube-scheduler:v{release}")})
        made = plan(found)
        found = done(found, made)
        config = read(found, CONFIG_PATH)
        assert config["apiVersion"] == f"{GROUP}{version}"
        assert ("healthzBindAddress" in config, "metricsBindAddress" in config) == ((release < "1.23",) * 2)
        assert any("does not start with healthzBindAddress and metricsBindAddress" in words for words in made.warnings) == (
            release == "1.22.17"
        )
        assert len(made.warnings) == (release == "1.22.17")
        assert plan(found).diff == []
    gone = done(found, plan(found, "absent"))
    assert gone.files[CONFIG_PATH] is None

    assert plan(state("1.27.16 with v1beta3")).warnings == []
    files = {path: str(text).replace("1.27.16", "1.28.15") for path, text in state("1.27.16 with v1beta3").files.items() if text}
    (words,) = plan(replace(state("1.27.16 with v1beta3"), files={CONFIG_PATH: None, **files})).warnings
    golden(words)
    # What somebody else has changed in ours is theirs.
    before = state("kubeadm 1.24")
    after = done(before, plan(before))
    edited = replace(after, files={**after.files, CONFIG_PATH: f"{after.files[CONFIG_PATH]}profiles:\n- schedulerName: mine\n"})
    edited = replace(edited, files={**edited.files, MANIFEST_PATH: str(after.files[MANIFEST_PATH]).replace("1.24.17", "1.25.16")})
    assert read(done(edited, plan(edited)), CONFIG_PATH)["apiVersion"] == f"{GROUP}v1beta3"


def test_flags_that_a_configuration_overrides_go_into_it_and_its_open_port_is_kept_to_the_host() -> None:
    flags = ("--leader-elect-lease-duration=30s", "--lock-object-name=mine", "--kube-api-qps=99")
    before = replace(state("kubeadm 1.21"), files={MANIFEST_PATH: manifest("1.21.14", *flags), CONFIG_PATH: None})
    made = plan(before)
    config = read(done(before, made), CONFIG_PATH)
    assert config["leaderElection"] == {"leaderElect": True, "leaseDuration": "30s", "resourceName": "mine"}
    assert config["clientConnection"]["qps"] == 99
    assert config["healthzBindAddress"] == config["metricsBindAddress"] == "127.0.0.1:10251"
    assert any("limits it to 127.0.0.1" in note for note in made.notes)
    assert made.lease == "kube-system/mine"
    later = read(done(state("kubeadm 1.23"), plan(state("kubeadm 1.23"))), CONFIG_PATH)
    assert "healthzBindAddress" not in later


@pytest.mark.parametrize(
    ("release", "version", "wanted", "both"),
    [
        ("1.36.3", "v1beta3", "write it in kubescheduler.config.k8s.io/v1 (", "kube-scheduler 1.28 reads both"),
        ("1.36.3", "v1beta2", "write it in kubescheduler.config.k8s.io/v1 (", "kube-scheduler 1.27 reads both"),
        ("1.36.3", "v1beta1", "write it in kubescheduler.config.k8s.io/v1 (", ""),
        ("1.24.17", "v1beta1", "write it in kubescheduler.config.k8s.io/v1beta3 (", "kube-scheduler 1.22 reads both"),
        ("1.24.17", "v1", "write it in kubescheduler.config.k8s.io/v1beta3 (", "kube-scheduler 1.28 reads both"),
        ("1.27.16", "v1alpha9", "write it in kubescheduler.config.k8s.io/v1 (", ""),
    ],
)
def test_a_configuration_that_is_not_read_is_to_be_written_anew(release: str, version: str, wanted: str, both: str) -> None:
    """No kube-scheduler converts one: each writes the version that it has read."""
    files = {MANIFEST_PATH: manifest(release, "--config=/s/c.yaml", mounts=(("/s", "/s"),)), "/s/c.yaml": configuration(version)}
    with pytest.raises(SchedulerError) as error:
        plan(Found(files))
    said = str(error.value)
    assert wanted in said
    assert both in said if both else "reads both" not in said
    assert "OLD" not in said


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({MANIFEST_PATH: manifest("1.21.14", "--algorithm-provider=ClusterAutoscalerProvider")}, "--algorithm-provider=Cluster"),
        (
            {MANIFEST_PATH: manifest("1.24.17", "--config=/s/c.yaml", mounts=(("/s", "/s"),)), "/s/c.yaml": configuration("v1")},
            r"that kube-scheduler 1.24 reads \(kubescheduler.config.k8s.io/v1beta3, kubescheduler.config.k8s.io/v1beta2\)",
        ),
        (
            {MANIFEST_PATH: manifest("1.36.3", "--config=/s/c.yaml", mounts=(("/s", "/s"),)), "/s/c.yaml": configuration("v1beta3")},
            "that kube-scheduler 1.36 reads",
        ),
        (
            {MANIFEST_PATH: manifest("1.15.12", "--config=/s/c.yaml", mounts=(("/s", "/s"),)), "/s/c.yaml": configuration("v1alpha1")},
            "names no policy file",
        ),
        ({MANIFEST_PATH: manifest("1.15.12", "--config=/s/c.yaml", mounts=(("/s", "/s"),))}, "and that file does not exist"),
        ({MANIFEST_PATH: manifest("1.15.12", "--config=/s/c.yaml", mounts=(("/s", "/s"),)), "/s/c.yaml": "[]"}, "found 'list'"),
        (
            {MANIFEST_PATH: manifest("1.15.12", "--policy-config-file=/s/p.json", mounts=(("/s", "/s"),)), "/s/p.json": '{"kind": "Pod"}'},
            "must have apiVersion v1 and kind Policy",
        ),
        ({MANIFEST_PATH: manifest("1.15.12", "--policy-config-file=/s/p.json", mounts=(("/s", "/s"),))}, "file does not exist"),
        ({MANIFEST_PATH: manifest("1.15.12", "--policy-config-file=/s/p.json")}, "no hostPath volume is mounted there"),
        ({MANIFEST_PATH: manifest("1.16.15", "--policy-configmap=scheduler-policy")}, "there is no such ConfigMap"),
        (
            {MANIFEST_PATH: manifest("1.24.17", f"--policy-config-file={POLICY_PATH}", mounts=((POLICY_PATH, POLICY_PATH),))},
            r"--policy-config-file, with which kube-scheduler 1\.24 does not start: remove it",
        ),
        ({MANIFEST_PATH: manifest("1.23.17", "--policy-configmap=scheduler-policy")}, "--policy-configmap, with which .* does not start"),
        (
            {
                MANIFEST_PATH: manifest("1.15.12", "--policy-config-file=/s/p.json", mounts=(("/s", "/s"),)),
                "/s/p.json": json.dumps({"kind": "Policy", "apiVersion": "v1", "extenders": [{"urlPrefix": "http://x", "bindVerb": "b"}]}),
            },
            "kube-scheduler allows one extender that binds",
        ),
    ],
)
def test_a_scheduler_that_cannot_be_wired_is_rejected_in_words(files: dict[str, str], words: str) -> None:
    with pytest.raises(SchedulerError, match=words):
        plan(Found({CONFIG_PATH: None, **files}))


@pytest.mark.parametrize(
    ("image", "server", "release"),
    [
        ("k8s.gcr.io/kube-scheduler:v1.22.17", "v1.23.1", (1, 22)),
        ("registry:5000/kube-scheduler:1.9.6-rc.1", "", (1, 9)),
        ("kube-scheduler:v1.24.17@sha256:" + "a" * 64, "", (1, 24)),
        ("kube-scheduler@sha256:" + "a" * 64, "v1.22.4+k3s1", (1, 22)),
        ("kube-scheduler:latest", "", None),
    ],
)
def test_the_release_is_the_schedulers_own(image: str, server: str, release: tuple[int, int] | None) -> None:
    assert releases.release_of(image, server) == release


def test_kubesprays_next_run_writes_the_same_with_the_values_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs/operate/coexist.md").read_text()
    (block,) = re.findall(r"```yaml\n(# kubespray.*?)```", page, re.S)
    values = yaml.safe_load(block)
    before = state("kubespray 1.36")
    after = done(before, plan(before))
    (path,) = (path for path in before.files if path.endswith("kubescheduler-config.yaml"))
    # As its templates have it: the extenders below a key, further options at the end.
    parts = {"extenders": values["kube_scheduler_extenders"], **values["kube_scheduler_config_extra_opts"]}
    written = {**read(before, path), **parts}
    assert written == read(after, path)
    (volume,) = values["scheduler_extra_volumes"]
    ours = [one for one in yaml.safe_load(after.cluster or "")["scheduler"]["extraVolumes"] if one["name"] == volume["name"]]
    assert [{**volume, "pathType": "Directory"}] == ours
    # What is left for the next run is the annotation, and the type of the volume.
    theirs = str(after.files[MANIFEST_PATH]).replace("      type: Directory\n", "")
    theirs = re.sub(r"  annotations:\n    gpushare.*\n", "", theirs)
    next_run = replace(after, files={**after.files, path: yaml.safe_dump(written), MANIFEST_PATH: theirs})
    again = plan(next_run)
    assert [one["after_header"] for one in again.diff] == [MANIFEST_PATH]
    assert plan(done(next_run, again)).diff == []


def test_a_scheduler_before_leases_is_proven_by_its_endpoints() -> None:
    assert plan(state("kubeadm 1.15")).for_module["scheduler"]["lease"]["by"] == "endpoints"
    assert plan(state("kubeadm 1.22")).for_module["scheduler"]["lease"]["by"] == "leases"
    record = {"holderIdentity": "cp1_x", "acquireTime": "2020-01-01T00:00:00Z", "renewTime": "2020-01-01T00:00:02Z"}
    annotations = {"control-plane.alpha.kubernetes.io/leader": json.dumps(record)}
    found = proof.lease_of_endpoints({"metadata": {"annotations": annotations}})
    holder = proof.holder(found, "cp1", proof.parse_time("2020-01-01T00:00:00Z"))
    assert holder == proof.Holder(True, "cp1_x")
    for none in (None, {}, {"metadata": {"annotations": {"control-plane.alpha.kubernetes.io/leader": "{"}}}):
        assert proof.lease_of_endpoints(none) is None


def test_a_policy_keeps_its_form() -> None:
    tabs = '{\n\t"kind": "Policy",\n\t"apiVersion": "v1"}'
    assert policy_text(tabs, json.loads(tabs)) == tabs
    assert policy_text(tabs, {"kind": "Policy", "x": "é"}) == '{\n\t"kind": "Policy",\n\t"x": "\\u00e9"\n}'
    assert policy_text(None, {"kind": "Policy"}) == '{\n  "kind": "Policy"\n}\n'


# What kube-scheduler 1.22.17 prints for a policy, seen: see tests/generations.
PRINTED = 'no kind "NodeResourcesLeastAllocatedArgs" is registered for version "kubescheduler.config.k8s.io/v1beta2" in scheme "x"'


def test_a_policy_that_1_22_has_read_counts_as_accepted_although_it_cannot_print_what_it_made_of_it(golden: Golden) -> None:
    def says(err: str) -> str | None:
        return check(lambda _argv: (1, "", err), "ctr", "image", [], [], "Policy")

    assert says(PRINTED) is None
    golden(str(says("the kubeconfig is gone")))
    with pytest.raises(CandidateError, match="invalid policy"):
        says('invalid policy: no kind "Polcy" is registered for version "v1" in scheme "x"')
    with pytest.raises(CandidateError):
        check(lambda _argv: (1, "", PRINTED), "ctr", "image", [], [])


def test_plain_http_needs_no_certificates_in_the_pod() -> None:
    before = state("seed 000")
    after = done(before, plan(before, extender=EXTENDER))
    assert "gpushare-pki" not in (after.files[MANIFEST_PATH] or "")
    assert "tlsConfig" not in (after.files[POLICY_PATH] or "")
