# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Files of kube-scheduler as people have them get our extender. PyYAML and json judge, not our own editor.

The real kube-schedulers read them in tests/generations/test_schedulers.py.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found

from unit.fakes.plugins.real_files.control_planes import found
from unit.fakes.plugins.real_files.corpus import Case, kept, line_ends, parameters
from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH
from unit.fakes.plugins.scheduler.manifests import TLS
from unit.fakes.plugins.scheduler.planned import NEW_POLICY, done, plan

FLAGS = {CONFIG_PATH: "config", NEW_POLICY: "policy-config-file"}
# The keys of a configuration or policy that are ours, or that belong to what we add.
OURS = ("extenders", "percentageOfNodesToScore")


def loaded(text: str) -> Any:
    """The first document, as Kubernetes takes it: JSON where it begins with a brace."""
    return json.loads(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else next(iter(yaml.safe_load_all(text)))


def without_ours(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without what we add to it."""
    pod = copy.deepcopy(pod)
    pod["metadata"].get("annotations", {}).pop("gpushare.kubernetes/scheduler-config-sha256", None)
    (container,) = [one for one in pod["spec"]["containers"] if "kube-scheduler" in str(one.get("command", []) + one.get("args", []))]
    added = {f"--{flag}={path}" for path, flag in FLAGS.items()}
    for key in ("command", "args"):
        if key in container:
            container[key] = [word for word in container[key] if word not in added]
    for parent, key in ((pod["spec"], "volumes"), (container, "volumeMounts")):
        parent[key] = [one for one in parent.get(key) or [] if not one["name"].startswith("gpushare-")]
    return {key: value for key, value in pod.items() if value} | {"metadata": pruned(pod["metadata"]), "spec": pruned(pod["spec"])}


def pruned(value: Any) -> Any:
    """Without what is empty, as Kubernetes' defaults are."""
    if isinstance(value, dict):
        return {key: pruned(one) for key, one in value.items() if pruned(one) not in ({}, [], None)}
    return [pruned(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", parameters("scheduler"))
def test_a_control_plane(case: Case) -> None:
    before = found(case)
    if case.is_rejected():
        with pytest.raises((ValueError, yaml.YAMLError)) as caught:
            plan(before)
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        return
    first = plan(before)
    after = done(before, first)
    was, now = loaded(before.files[MANIFEST_PATH] or ""), loaded(after.files[MANIFEST_PATH] or "")
    assert without_ours(now) == without_ours(was)
    wired(before, after)
    for path, text in before.files.items():
        if text is not None:
            new = after.files[path] or ""
            assert [line for line in kept(text, new) if "#" in line and not first.warnings] == []
            assert line_ends(new) <= (line_ends(text) or {"\n"})

    assert not plan(after).changed

    gone = done(after, plan(after, "absent"))
    assert {path: text for path, text in gone.files.items() if text is not None} == {
        path: text for path, text in before.files.items() if text is not None
    }
    assert gone.cluster == before.cluster


def wired(before: Found, after: Found) -> None:
    """One file that the scheduler reads has our extender, and all else of theirs."""
    changed = [path for path in after.files if after.files[path] != before.files.get(path) and path != MANIFEST_PATH]
    (path,) = changed
    now, was = loaded(after.files[path] or ""), loaded(before.files.get(path) or "{}") or {}
    (entry,) = [one for one in now["extenders"] if one["urlPrefix"] == TLS.url_prefix]
    assert entry["bindVerb"] == "bind"
    if was:
        assert {key: value for key, value in now.items() if key not in OURS} == {
            key: value for key, value in was.items() if key not in OURS
        }
        theirs = [one for one in was.get("extenders") or [] if "gpushare-scheduler" not in one["urlPrefix"]]
        assert [one for one in now["extenders"] if one != entry] == theirs
