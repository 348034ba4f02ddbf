# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""NVIDIA's two settings belong together: what each one does alone, and every place that names one names the other, with the same values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.nvidia_config import ENVIRONMENT_KEY, MOUNTS_KEY, STRICT
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.workloads import daemon_set

from docs.pages import Block, blocks
from tree import REPOSITORY, files

ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
TENANT = {"env": [ALL], "volumeMounts": [], "securityContext": {}}
VALUES = Values(image="registry.example.org/gpushare:0.1.0", scheduler_image="registry.example.org/kube-scheduler:v1.37.2")
_MOUNTED = "/var/run/nvidia-container-devices/"


def given(settings: Mapping[str, bool], container: Mapping[str, Any], null: Collection[str] = ()) -> set[str]:
    """What NVIDIA's runtime gives: VisibleDevices of nvidia-container-toolkit d34b3046. null: the volumes of /dev/null."""
    mounted = {
        one["mountPath"].removeprefix(_MOUNTED)
        for one in container["volumeMounts"]
        if one["name"] in null and one["mountPath"].startswith(_MOUNTED)
    }
    if settings[MOUNTS_KEY] and mounted:
        return mounted
    privileged = "SYS_ADMIN" in container["securityContext"].get("capabilities", {}).get("add", [])
    named = {one["value"] for one in container["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES"}
    return named if privileged or settings[ENVIRONMENT_KEY] else set()


def of_the_plugin(settings: Mapping[str, bool], values: Values = VALUES) -> set[str]:
    pod = daemon_set(values)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return given(settings, container, {one["name"] for one in pod["volumes"] if one.get("hostPath", {}).get("path") == "/dev/null"})


@pytest.mark.parametrize("by_mount", [False, True])
@pytest.mark.parametrize("by_variable", [False, True])
def test_only_both_together_close_the_variable_and_leave_the_device_plugin_its_gpus(by_variable: bool, by_mount: bool) -> None:
    settings = {ENVIRONMENT_KEY: by_variable, MOUNTS_KEY: by_mount}
    works = not given(settings, TENANT) and of_the_plugin(settings) == {"all"}
    assert works == (settings == STRICT)


def test_a_device_plugin_with_limits_by_the_driver_is_privileged_to_nvidias_runtime() -> None:
    alone = {ENVIRONMENT_KEY: False, MOUNTS_KEY: False}
    assert of_the_plugin(alone) == set()
    assert of_the_plugin(alone, replace(VALUES, isolation="driver")) == {"all"}


#: The names in config.toml, and those of the GPU Operator's toolkit.
NAME = re.compile(r"accept-nvidia-visible-devices-[a-z-]+|ACCEPT_NVIDIA_VISIBLE_DEVICES_[A-Z_]+")
PAGES = [path for path in files() if path.endswith(".md") and not path.startswith((".github/", "changelogs/"))]
NAMING = [page for page in PAGES if NAME.search((REPOSITORY / page).read_text())]


def settings_in(page: str) -> Iterator[dict[str, bool]]:
    """What each block of data of a page sets of the two."""
    for number, block in enumerate(BLOCKS[page]):
        if NAME.search(block.body):
            found = dict(pairs(block))
            assert found, f"{page}, block {number}: a form that this does not read"
            yield found


def pairs(block: Block) -> Iterator[tuple[str, bool]]:
    """TOML, the options of nvidia-ctk, or variables of a container."""
    if block.kind == "toml":
        read = tomllib.loads(block.body)
        yield from ((name, read[name]) for name in STRICT if name in read)
        return
    for name, value in re.findall(rf"--set ({NAME.pattern})=(true|false)", block.body):
        yield name, value == "true"
    for one in yaml.safe_load_all(block.body) if block.kind == "yaml" else ():
        for variable in one.get("spec", {}).get("toolkit", {}).get("env", ()):
            yield variable["name"].lower().replace("_", "-"), {"true": True, "false": False}[variable["value"]]


BLOCKS = {page: blocks(page) for page in NAMING}


@pytest.mark.parametrize("page", NAMING)
def test_a_page_that_names_one_names_both_and_its_blocks_set_them_as_the_role_does(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    named = {name.lower().replace("_", "-") for name in NAME.findall(text)}
    assert set(STRICT) <= named
    assert [found for found in settings_in(page) if found != STRICT] == []


def test_the_pages_that_set_them_are_there() -> None:
    setting = {page for page in NAMING for block in BLOCKS[page] if NAME.search(block.body)}
    own = ("eks", "openshift", "kubernetes")
    assert setting >= {*(f"docs/operate/{name}.md" for name in own), "roles/nvidia_container_toolkit/README.md"}


def test_half_of_it_and_another_value_are_found() -> None:
    half = Block("", "", "yaml", f"a:\n  - nvidia-ctk config --set {ENVIRONMENT_KEY}=false\n")
    other = Block("", "", "toml", f"{ENVIRONMENT_KEY} = true\n{MOUNTS_KEY} = true\n")
    assert [dict(pairs(one)) == STRICT for one in (half, other)] == [False, False]


def test_the_nodes_of_the_lab_have_them() -> None:
    text = Path(REPOSITORY, "tools/lab/node/gpu/etc/nvidia-container-runtime/config.toml").read_text()
    read = tomllib.loads(text)
    assert {name: read[name] for name in STRICT} == STRICT
