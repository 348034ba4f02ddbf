# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""YAML of hosts and of the cluster is read in bounds, and within them as PyYAML reads it. Where Kubernetes reads other values: see
test_yaml_as_kubernetes.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils import _yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, plan_present

from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH, POLICY_PATH, RICH_POLICY, STATES
from unit.fakes.plugins.scheduler.manifests import TLS
from unit.fakes.plugins.scheduler.planned import done, plan, state

#: Nine levels of nine: 400 bytes that mean 387 million values.
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 9))


@pytest.mark.parametrize("text", ["", "# nothing\n", "a: &x {b: 1}\nc: *x\n", "- 1\n- 2\n", RICH_POLICY, *STATES["seed 000"][0].values()])
def test_within_the_bounds_it_is_what_pyyaml_reads(text: str) -> None:
    assert _yaml.load(text) == yaml.safe_load(text)
    assert _yaml.load(text.encode()) == yaml.safe_load(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "more than 50000 values, its aliases written out"),
        (MERGES, "more than 50000 values"),
        ("a: &a [*a]\n", "too many levels, or within itself"),
        ("[" * 100_000, "too many levels"),
        ('{"a":' * 40_000, "too many levels"),
        ("a: " + "x" * 300_000, "300003 characters; expected at most 262144"),
    ],
)
def test_beyond_them_it_is_an_error_of_yaml(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError, match=words):
        _yaml.load(text)


@pytest.mark.parametrize("text", ["a: [", "a: !!python/object:os.system x\n"])
def test_what_is_no_document_is_an_error_as_before(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        _yaml.load(text)


def test_a_policy_that_is_indented_by_tabs_is_wired_and_stays_so() -> None:
    before = state("seed 000")
    tabs = json.dumps(json.loads(str(before.files[POLICY_PATH])), indent="\t")
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(tabs)
    before = replace(before, files={**before.files, POLICY_PATH: tabs})
    after = done(before, plan(before))
    assert '\n\t"extenders": [\n\t\t{\n' in str(after.files[POLICY_PATH])
    assert done(after, plan(after, "absent")).files[POLICY_PATH] == tabs


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["manifest", "configuration", "cluster"])
def test_a_scheduler_whose_files_mean_gigabytes_is_rejected(place: str) -> None:
    files, cluster, _policy = STATES["1.36.3 with v1"]
    config = next(path for path in files if path != MANIFEST_PATH)
    if place == "cluster":
        cluster = f"{cluster}{LAUGHS}"
    else:
        path = MANIFEST_PATH if place == "manifest" else config
        files = {**files, path: files[path] + LAUGHS}
    with pytest.raises(yaml.YAMLError, match="more than 50000 values"):
        plan_present(MANIFEST_PATH, CONFIG_PATH, Found({CONFIG_PATH: None, **files}, cluster=cluster), TLS)
