# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The chart, rendered by Helm's own engine, has the objects of the builders; its schema rejects values that they could not have."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import key, title
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.in_cluster import objects
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values, scheduler_image
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables

from charts.sets import BAD, REJECTED_BY_CLAIMS, SETS, Json
from docs.pages import blocks
from gpushare_lab import components
from gpushare_lab.prepare import the_cache
from tree import REPOSITORY, files

CHART = Path(__file__).resolve().parents[2] / "charts/gpushare"
NOTES = "gpushare/templates/NOTES.txt"
SPACE = "gpushare-system"
#: Container to its name in the value `resources`.
_CONTAINERS = {"kube-scheduler": "scheduler", "extender": "extender", "device-plugin": "devicePlugin", "dashboard": "dashboard"}
MUTATING = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
SLICES, CLAIMS = "resource.k8s.io/v1/ResourceSlice", "resource.k8s.io/v1/ResourceClaim"


def ask(sets: list[Json]) -> list[Json]:
    program = components.chart(the_cache()) / "chart"
    asked = json.dumps({"chart": str(CHART), "namespace": SPACE, "sets": sets})
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Json] = json.loads(done.stdout)
    return found


def _mutates(kubernetes: str) -> bool:
    """Whether its API server has MutatingAdmissionPolicy as v1."""
    return (numbers(kubernetes) or ()) >= (1, 36)


def a_set(values: Json, kubernetes: str, *there: Json) -> Json:
    """there: the objects of the cluster."""
    apis = [MUTATING, SLICES, CLAIMS] if _mutates(kubernetes) else []
    return {"values": values, "kubernetes": kubernetes, "apis": apis, "objects": there}


@cache
def rendered() -> list[Json]:
    return ask([a_set(values, kubernetes) for values, _, kubernetes in SETS])


@pytest.mark.parametrize("number", range(len(SETS)))
def test_it_renders_to_the_objects_of_the_builders(number: int) -> None:
    answer, (_, fields, kubernetes) = rendered()[number], SETS[number]
    assert answer["error"] == ""
    found = [one for name, text in answer["files"].items() if name != NOTES for one in yaml.safe_load_all(text) if one]
    known = {"image": variables()["gpushare_image"].spec["default"], "scheduler_image": scheduler_image(kubernetes)}
    wanted = objects(Values(**{**known, "mutating": _mutates(kubernetes), **fields}))
    there, expected = ({key(one): one for one in each} for each in (found, wanted))
    # Helm makes it.
    del expected["Namespace", "", SPACE]
    assert sorted(map(title, there)) == sorted(map(title, expected))
    assert [title(name) for name in expected if json.loads(json.dumps(expected[name])) != there[name]] == []


def test_its_notes_have_the_label_and_how_to_see_whether_the_pods_serve() -> None:
    """Helm says `deployed` before any of them does."""
    answer, anywhere = ask([a_set(values, "v1.36.3") for values in ({"kubeletRoot": "/data/kubelet"}, {"schedulerOnGpuNodes": True})])
    shown = answer["files"][NOTES]
    assert re.findall("^  kubectl .*$", shown, re.MULTILINE) == [
        "  kubectl label node NODE gpushare.kubernetes/node=true",
        "  kubectl -n gpushare-system get pods -l app.kubernetes.io/name=gpushare-scheduler -o wide",
        "  kubectl -n gpushare-system delete pods -l app.kubernetes.io/name=gpushare-scheduler --field-selector spec.nodeName=NODE",
        "  kubectl -n gpushare-system rollout status deployment/gpushare-scheduler --timeout=180s",
        "  kubectl -n gpushare-system rollout status daemonset/gpushare-device-plugin --timeout=180s",
        "  kubectl -n gpushare-system describe pods -l app.kubernetes.io/part-of=gpushare",
    ]
    assert "/data/kubelet/pod-resources" in shown
    assert shown.startswith("The device plugin runs on nodes with a label.")
    assert "delete pods" not in anywhere["files"][NOTES]


@cache
def rejected() -> list[Json]:
    return ask([a_set(values, "v1.36.3") for values in BAD])


@pytest.mark.parametrize("number", range(len(BAD)))
def test_the_schema_rejects_what_cannot_be(number: int) -> None:
    assert "values don't meet the specifications of the schema" in rejected()[number]["error"]


def test_an_older_kubernetes_is_rejected_by_the_chart() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == ">=1.30.0-0"


def test_a_version_that_names_no_image_is_rejected_with_what_to_set() -> None:
    """Argo CD up to 3.3 tells a chart two numbers of the cluster's version, and AKS has patches of its own."""
    without, of_aks, named, of_eks = ask(
        [a_set({}, version) for version in ("v1.36", "v1.30.100")]
        + [a_set({"schedulerImage": "m.example.org/s:v1.36.0"}, "v1.36"), a_set({}, "v1.36.13-eks-3abbec1")]
    )
    assert "set schedulerImage" in without["error"]
    assert "set schedulerImage" in of_aks["error"]
    assert (named["error"], of_eks["error"]) == ("", "")
    assert 'registry.k8s.io/kube-scheduler:v1.36.13"' in of_eks["files"]["gpushare/templates/objects.yaml"]
    assert "m.example.org/s:v1.36.0" in named["files"]["gpushare/templates/objects.yaml"]


def test_requests_and_limits_of_each_container_can_be_set() -> None:
    """What is left out stays; the defaults are compared with the builders above."""
    more = {name: {"limits": {"memory": f"{number}Gi"}} for number, name in enumerate(_CONTAINERS.values(), 1)}
    (answer,) = ask([a_set({"resources": more, "dashboard": {"enabled": True}}, "v1.36.3")])
    made = [one for one in yaml.safe_load_all(answer["files"]["gpushare/templates/objects.yaml"]) if one]
    pods = [one["spec"]["template"]["spec"] for one in made if "template" in one.get("spec", {})]
    found = {each["name"]: each["resources"] for pod in pods for each in pod["containers"]}
    assert {_CONTAINERS[name]: found[name]["limits"] for name in _CONTAINERS} == {name: one["limits"] for name, one in more.items()}
    assert all(found[name]["requests"] for name in _CONTAINERS)


def test_what_openshift_would_not_admit_is_rejected() -> None:
    (answer,) = ask([a_set({"openshift": True, "isolation": "driver"}, "v1.36.3")])
    assert "found isolation: driver with openshift: true" in answer["error"]


@pytest.mark.parametrize(("values", "kubernetes", "words"), REJECTED_BY_CLAIMS)
def test_what_the_back_end_dra_does_not_have_is_rejected(values: Json, kubernetes: str, words: str) -> None:
    (answer,) = ask([a_set({"backend": "dra", **values}, kubernetes)])
    assert words in answer["error"]
    assert "leave backend out" in answer["error"]


def test_only_the_back_end_dra_evicts_the_pods_of_a_gpu_that_fails() -> None:
    (answer,) = ask([a_set({"unhealthy": "evict"}, "v1.37.2")])
    assert "found unhealthy: evict with backend: extender" in answer["error"]


@pytest.mark.parametrize("missing", [MUTATING, SLICES])
def test_an_api_server_without_what_claims_need_is_rejected(missing: str) -> None:
    (answer,) = ask([{**a_set({"backend": "dra"}, "v1.37.2"), "apis": [one for one in (MUTATING, SLICES) if one != missing]}])
    assert f"the API server does not serve {missing}" in answer["error"]


def test_the_other_back_end_in_the_namespace_is_rejected() -> None:
    (answer,) = ask([a_set({"backend": "dra"}, "v1.37.2", an_object("apps/v1", "Deployment", "gpushare-scheduler", SPACE))])
    assert "found the Deployment gpushare-scheduler of backend: extender" in answer["error"]
    (answer,) = ask([a_set({}, "v1.37.2", an_object("apps/v1", "Deployment", "gpushare-claims", SPACE))])
    assert "found the Deployment gpushare-claims of backend: dra" in answer["error"]


def an_object(api: str, kind: str, name: str, namespace: str = "", annotations: Json | None = None, **more: Any) -> Json:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "annotations": annotations or {}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def a_claim(driver: str) -> Json:
    allocation = {"devices": {"results": [{"request": "gpu", "driver": driver, "pool": "gpu1", "device": "gpu-1"}]}}
    return an_object("resource.k8s.io/v1", "ResourceClaim", "server-m6", "team", status={"allocation": allocation})


def test_claims_that_have_gpus_keep_the_extender_off() -> None:
    waits = an_object("resource.k8s.io/v1", "ResourceClaim", "waits", "team", status={})
    there, other = (ask([a_set({}, "v1.37.2", waits, a_claim(driver))])[0] for driver in ("gpushare.kubernetes", "gpu.nvidia.com"))
    assert "found the ResourceClaim team/server-m6 with a GPU of backend: dra" in there["error"]
    assert other["error"] == ""


def a_pod(node: str, phase: str, *annotations: str) -> Json:
    given = dict.fromkeys(annotations, '{"0": {"0": 6}}')
    spec = {"nodeName": node} if node else {}
    return an_object("v1", "Pod", "server", "team", given, spec=spec, status={"phase": phase})


ALLOCATION = "scheduler.framework.gpushare.allocation"


@pytest.mark.parametrize(
    ("pod", "rejected"),
    [
        (a_pod("gpu1", "Running", ALLOCATION), True),
        (a_pod("gpu1", "Succeeded", ALLOCATION), False),
        (a_pod("gpu1", "Running"), False),
        (a_pod("", "Pending", ALLOCATION), False),
        # Nobody has published GPUs there: a user has written the annotation.
        (a_pod("other", "Running", ALLOCATION), False),
    ],
)
def test_pods_with_gpus_of_the_extender_keep_claims_off(pod: Json, rejected: bool) -> None:
    nodes = (an_object("v1", "Node", "gpu1", annotations={"gpushare/gpus": "{}"}), an_object("v1", "Node", "other"))
    (answer,) = ask([a_set({"backend": "dra"}, "v1.37.2", pod, *nodes)])
    assert ("found the pod team/server with a GPU of backend: extender" in answer["error"]) is rejected
    assert bool(answer["error"]) is rejected


@pytest.mark.parametrize(
    ("label", "driver", "words"),
    [
        ("true", "gpu.nvidia.com", "found the DRA driver gpu.nvidia.com with GPUs of node gpu1"),
        ("false", "gpu.nvidia.com", ""),
        ("true", "gpushare.kubernetes", ""),
    ],
)
def test_a_driver_of_others_on_a_node_of_ours_is_rejected(label: str, driver: str, words: str) -> None:
    part = an_object("resource.k8s.io/v1", "ResourceSlice", "one", spec={"driver": driver, "nodeName": "gpu1"})
    node = an_object("v1", "Node", "gpu1")
    node["metadata"]["labels"] = {"gpushare.kubernetes/node": label}
    (answer,) = ask([a_set({"backend": "dra"}, "v1.37.2", part, node)])
    assert words in answer["error"]
    assert bool(answer["error"]) is bool(words)


def test_the_notes_name_the_daemon_that_is_there() -> None:
    (answer,) = ask([a_set({"backend": "dra"}, "v1.37.2")])
    shown = answer["files"][NOTES]
    assert "rollout status deployment/gpushare-claims" in shown
    assert "gpushare-scheduler" not in shown


PLACES = re.compile(r"helm (?:install|upgrade|template) \S+ charts/gpushare .*")


def of_the_pages() -> Iterator[tuple[str, Json]]:
    """Page and values of each command of Helm, and of each application of Argo CD, that a page has for this chart."""
    for page in (one for one in files() if one.endswith(".md")):
        for block in blocks(page):
            for command in filter(PLACES.match, block.commands if block.kind == "shell" else ()):
                words = iter(shlex.split(command))
                found: Json = {}
                for word in words:
                    if word == "--values":
                        merge(found, yaml.safe_load((REPOSITORY / next(words)).read_text()))
                    elif word == "--set":
                        name, _, value = re.sub(r"\$\w+", "registry.example.org", next(words)).partition("=")
                        *above, last = name.split(".")
                        given: Json = {last: yaml.safe_load(value)}
                        for part in reversed(above):
                            given = {part: given}
                        merge(found, given)
                yield page, found
            for one in yaml.safe_load_all(block.body) if block.kind == "yaml" else ():
                if isinstance(one, dict) and one.get("kind") == "Application":
                    helm = one["spec"]["source"]["helm"]
                    merged: Json = {}
                    for file in helm["valueFiles"]:
                        merge(merged, yaml.safe_load((CHART / file).read_text()))
                    merge(merged, helm["valuesObject"])
                    yield page, merged


def merge(values: Json, more: Json) -> None:
    """As Helm does: mappings are merged, everything else is replaced."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            merge(values[name], value)
        else:
            values[name] = value


def test_what_the_pages_install_can_be_rendered() -> None:
    shown = list(of_the_pages())
    known = {
        *(f"docs/operate/{name}.md" for name in ("clusters-of-others", "eks", "openshift", "integrations")),
        "docs/reference/metrics.md",
    }
    assert {page for page, _ in shown}.issuperset(known)
    assert len(shown) > 5
    answers = ask([a_set(values, "v1.37.2" if values.get("backend") == "dra" else "v1.36.3") for _, values in shown])
    assert [(page, answer["error"]) for (page, _), answer in zip(shown, answers, strict=True) if answer["error"]] == []
