# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubectl gpushare manifests: the objects of the builders for every set of the chart's values, and errors for what cannot be."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import in_cluster
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values, scheduler_image
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.reasons import OLDEST_WITH_POLICIES

from charts.sets import BAD, SETS, Json
from gpushare_runtime.kubectl_gpushare import manifests
from gpushare_runtime.kubectl_gpushare.api import InputError
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving


@pytest.mark.parametrize("namespace", ["gpushare-system", "kube-system"])
@pytest.mark.parametrize("number", range(len(SETS)))
def test_they_are_those_of_the_builders(number: int, namespace: str) -> None:
    values, fields, kubernetes = SETS[number]
    known = {"image": manifests.template()["values"]["image"], "scheduler_image": scheduler_image(kubernetes), "namespace": namespace}
    wanted = in_cluster.objects(Values(**{**known, "mutating": (numbers(kubernetes) or ()) >= manifests.OLDEST_MUTATING, **fields}))
    assert manifests.objects(values, namespace, kubernetes) == json.loads(json.dumps(wanted))


@pytest.mark.parametrize("values", BAD)
def test_values_that_cannot_be_are_rejected(values: Json) -> None:
    with pytest.raises(InputError, match=r"found .* in .*; expected"):
        manifests.objects(values, "gpushare-system", "v1.36.3")


@pytest.mark.parametrize(
    ("namespace", "kubernetes", "words"),
    [
        ("default", "v1.36.3", "a name that begins with gpushare-"),
        ("gpushare-system", "1.36", "expected one such as v1.36.3"),
        ("gpushare-system", "v1.29.9", "1.30 or newer"),
    ],
)
def test_other_input_that_cannot_be(namespace: str, kubernetes: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        manifests.objects({}, namespace, kubernetes)


def test_the_releases_are_those_of_the_installer() -> None:
    assert (manifests.OLDEST, manifests.OLDEST_MUTATING) == (OLDEST_WITH_POLICIES, (1, 36))
    assert manifests.objects({}, "gpushare-system", "v1.36.3-eks-1+a")[0]["metadata"]["name"] == "gpushare-system"


def test_values_of_a_file_and_of_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"apiServer: {host: h1}\npreemption: true\n")))
    words = ["--set", "apiServer.port=8443", "--set", "preemption=false", "--set", "annotationWriters=a:b,c", "--set", "overuseGrace=70"]
    assert main(["manifests", "-f", "-", "--kubernetes", "v1.31.0", *words]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    given = {"apiServer": {"host": "h1", "port": 8443}, "preemption": False, "annotationWriters": ["a:b", "c"], "overuseGrace": 70}
    assert found == manifests.objects(given, "gpushare-system", "v1.31.0")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (b"[1]", [], "expected an object"),
        (b"{", [], "not YAML"),
        (b"", ["image"], "expected NAME=VALUE with one of image, "),
        (b"", ["apiServer.x=1"], "apiServer.host"),
        (b"", ["image.x=1"], "apiServer.host"),
    ],
)
def test_values_that_cannot_be_read(text: bytes, words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        manifests.read_values(text, words)


def test_the_version_is_asked_where_it_is_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def go() -> int:
        async with serving(FakeApi()) as api:
            await api.put("/version", {"gitVersion": "v1.34.2"})
            (tmp_path / "config").write_text(kubeconfig(api.url))
            return await asyncio.to_thread(main, ["manifests", "--kubeconfig", str(tmp_path / "config")])

    assert asyncio.run(go()) == 0
    assert "image: registry.k8s.io/kube-scheduler:v1.34.2\n" in capsys.readouterr().out
    assert main(["manifests", "--kubeconfig", str(tmp_path / "none")]) == 1
