# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A user with rights in one namespace: what he gets without a right over nodes and others' pods, and what he is told to run instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from docs.pages import blocks
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.placement.gpu_sizes import sizes_of
from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.core.ledger_schema import check
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving, status
from unit.fakes.runtime.kubectl_gpushare.command import fill_api
from unit.fakes.runtime.kubectl_gpushare.objects import pending
from unit.fakes.runtime.pods import container, gpu, inventory

SIZES = "/api/v1/namespaces/kube-public/configmaps/gpushare-gpus"
PODS, EVENTS = "/api/v1/namespaces/team/pods", "/api/v1/namespaces/team/events"
FULL = (
    "0/4 nodes are available: 1 gpu1: needs 12 GiB on one GPU, at most 7 are free on one (9 of 32 in total), "
    "1 gpu2: needs 12 GiB on one GPU, at most 10 are free on one (10 of 16 in total), 2 node(s) had untolerated taint {a: b}."
)
WRITE_8 = "fits on no GPU, even an empty one: 8Gi means 8589934592 units of 1 GiB; the largest GPU has 24; write 8"
EVENT = "8Gi means 8589934592 units of 1 GiB; the largest GPU has 24; write 8"
UNDER_IT = "Only the pod itself was judged: to say which node has room, explain needs to list nodes and all pods."


def large(name: str = "big") -> dict[str, Any]:
    raw = pending(name, "0/4 nodes are available: 2 Insufficient aliyun.com/gpu-mem.", namespace="team")
    raw["spec"]["containers"] = [container(mem="8Gi")]
    return raw


def event(name: str, about: str, reason: str, message: str) -> dict[str, Any]:
    involved = {"kind": "Pod", "name": about, "uid": f"uid-{about}", "namespace": "team"}
    return {"metadata": {"name": name}, "involvedObject": involved, "type": "Warning", "reason": reason, "message": message}


class Tenant(FakeApi):
    """All rights in the namespace `team`, and what every user may read. forbidden: more that he may not."""

    forbidden: tuple[str, ...] = ()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        here = request.path.startswith("/api/v1/namespaces/team/") or request.path == SIZES
        if here and request.path not in self.forbidden:
            return await super().handle(request)
        self.requests.append((request.method, request.path, dict(request.query)))
        return status(403, "Forbidden", f'{request.path} is forbidden: User "me" cannot list it')


def run(
    tmp_path: Path,
    *argv: str,
    objects: Mapping[str, Any],
    namespace: str = "team",
    sizes: str | None = None,
    forbidden: tuple[str, ...] = (),
) -> tuple[int, FakeApi]:
    """The command of such a user. sizes: as the extender has written them, None in an older installation."""

    async def go() -> tuple[int, FakeApi]:
        async with serving(Tenant()) as api:
            assert isinstance(api, Tenant)
            api.forbidden = forbidden
            await fill_api(api)
            for path, value in objects.items():
                await api.put(path, json.loads(json.dumps(value)))
            if sizes is not None:
                await api.put(SIZES, {"metadata": {"name": "gpushare-gpus"}, **({"data": {"sizes": sizes}} if sizes else {})})
            config = yaml.safe_load(kubeconfig(api.url))
            config["contexts"][0]["context"]["namespace"] = namespace
            (tmp_path / "config").write_text(yaml.safe_dump(config))
            return await asyncio.to_thread(main, [*argv, "--kubeconfig", str(tmp_path / "config")]), api

    return asyncio.run(go())


KNOWN = sizes_of([inventory(16, 24)])
assert KNOWN is not None
TEXT = KNOWN.to_json()
DIFFERENT = sizes_of([inventory(16, 24), Inventory(UNITS["MiB"], (gpu(0, 4096),))])
assert DIFFERENT is not None


def test_his_pods_with_gib_and_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, api = run(tmp_path, "pods", objects={f"{PODS}/big": large()}, sizes=TEXT)
    rows = [line.split(maxsplit=6) for line in capsys.readouterr().out.splitlines()[1:]]
    assert code == 0
    assert [row[:5] for row in rows] == [["t", "gpu1", "0", "2", "GiB"], ["big", "-", "-", "-", "-"], ["w", "-", "-", "-", "-"]]
    assert rows[1][-1].endswith(EVENT)
    assert EVENTS not in [path for _, path, _ in api.requests], "the sizes say all that the Events do"
    run(tmp_path, "namespaces", objects={}, sizes=TEXT)
    assert capsys.readouterr().out.splitlines()[1].split() == ["team", "1", "1", "0", "2", "-"]


@pytest.mark.parametrize(
    ("sizes", "warned"),
    [
        (None, False),
        # No GPU is known yet.
        ("", False),
        ('{"v":9}', True),
    ],
)
def test_without_the_sizes_the_event_says_what_to_write(
    sizes: str | None, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = {
        f"{PODS}/big": large(),
        f"{EVENTS}/a": event("a", "big", "FailedScheduling", "of another reporter"),
        f"{EVENTS}/b": event("b", "big", "GPUShareRequestTooLarge", f"{EVENT}\x1b[2J"),
        f"{EVENTS}/c": event("c", "w", "GPUShareMemoryExceeded", "of the former pod"),
    }
    code, api = run(tmp_path, "pods", objects=objects, sizes=sizes)
    printed = capsys.readouterr()
    found = {line.split()[0]: line for line in printed.out.splitlines()}
    assert (code, found["big"].endswith(f"{EVENT} [2J"), "2 units" in found["t"]) == (0, True, True)
    assert found["w"].endswith("kube-scheduler has reported nothing yet")
    assert ("kube-public/gpushare-gpus: version 9 is not known" in printed.err) is warned
    [query] = [query for _, path, query in api.requests if path == EVENTS]
    assert query == {"fieldSelector": "involvedObject.kind=Pod,type=Warning,source=gpushare-extender", "limit": "500"}
    # Nor the right to read Events.
    assert run(tmp_path, "pods", objects=objects, sizes=sizes, forbidden=(EVENTS,))[0] == 0
    assert "2 Insufficient aliyun.com/gpu-mem" in capsys.readouterr().out


def test_where_nodes_have_different_units_they_stay_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert DIFFERENT is not None
    assert run(tmp_path, "pods", objects={}, sizes=DIFFERENT.to_json())[0] == 0
    assert "2 units" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pod", "code", "lines"),
    [
        (large(), 3, [f"team/big: {WRITE_8}"]),
        (
            pending("big", FULL, namespace="team", mem=12),
            3,
            ["team/big: fits on no node, as kube-scheduler last reported: write at most 10, or wait for room"],
        ),
        (
            pending("big", FULL.replace("needs 12 GiB on one GPU, at most", "needs 1 whole GPU, at most"), namespace="team", count=1),
            3,
            ["team/big: fits on no node, as kube-scheduler last reported: wait for room"],
        ),
        (
            pending("big", "0/4 nodes are available: 4 Insufficient cpu.", namespace="team", mem=2),
            3,
            ["team/big: fits on no node, as kube-scheduler last reported: it waits for CPU"],
        ),
        (pending("big", namespace="team", mem=2), 1, ["team/big: kube-scheduler has reported nothing yet: ask again in a moment"]),
    ],
)
def test_explain_judges_the_pod_alone(
    pod: dict[str, Any], code: int, lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "explain", "big", objects={f"{PODS}/big": pod}, sizes=TEXT)[0] == code
    printed = capsys.readouterr().out.splitlines()
    assert (printed[:1], printed[-2:]) == (lines, ["", UNDER_IT])
    reported = (pod["status"].get("conditions") or [{"message": ""}])[0]["message"]
    assert printed[1].endswith(f"kube-scheduler reported: {reported}" if reported else "requests 2 GiB")
    assert run(tmp_path, "explain", "big", "-o", "json", objects={f"{PODS}/big": pod}, sizes=TEXT)[0] == code
    made = json.loads(capsys.readouterr().out)
    assert (made["complete"], made["fits"], made["nodes"], f"team/big: {made['verdict']}") == (False, False, [], lines[0])


@pytest.mark.parametrize(("page", "name"), [("docs/reference/kubectl.md", "train"), ("docs/use/first-pod.md", "first")])
def test_the_pages_show_what_it_prints(page: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = large(name)
    raw["status"]["conditions"][0]["message"] = "0/3 nodes are available: …"
    run(tmp_path, "explain", name, objects={f"{PODS}/{name}": raw}, sizes=TEXT)
    command = f"$ kubectl gpushare explain {name}\n"
    (shown,) = (block.body.removeprefix(command) for block in blocks(page) if block.body.startswith(command))
    assert capsys.readouterr().out.startswith(shown)


def test_explain_without_the_sizes_has_the_events_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = {f"{PODS}/big": large(), f"{EVENTS}/b": event("b", "big", "GPUShareRequestTooLarge", EVENT)}
    assert run(tmp_path, "explain", "big", objects=objects)[0] == 3
    assert capsys.readouterr().out.splitlines()[0] == f"team/big: {EVENT}"


def test_explain_of_a_pod_that_has_its_gpu_and_of_one_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "explain", "t", objects={}, sizes=TEXT)[0] == 0
    assert capsys.readouterr().out == "pod team/t is on node gpu1 and has 2 GiB of GPU 0\n"
    assert run(tmp_path, "explain", "-A", "none", objects={}, sizes=TEXT)[0] == 1
    assert "found no pod 'none' in namespace 'team'" in capsys.readouterr().err


def test_a_scheduler_that_is_not_ours_is_named_to_him_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = pending("big", namespace="team", mem=2)
    raw["spec"]["schedulerName"] = "mine"
    assert run(tmp_path, "explain", "big", objects={f"{PODS}/big": raw}, sizes=TEXT)[0] == 1
    assert capsys.readouterr().out.startswith(
        "team/big: its scheduler has reported nothing yet: ask again in a moment; its scheduler is another one, 'mine'"
    )


def manifest(tmp_path: Path, *units: str) -> str:
    limits = [{"limits": {"aliyun.com/gpu-mem": one}} for one in units]
    pods = [
        {"kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": {"containers": [{"name": "main", "resources": one}]}}
        for number, one in enumerate(limits)
    ]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(pods))
    return str(tmp_path / "pods.yaml")


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_file_with_a_request_that_is_too_large(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, command, "-f", manifest(tmp_path, "8Gi"), objects={}, sizes=TEXT)[0] == 3
    assert WRITE_8 in capsys.readouterr().out


def test_simulate_says_what_it_cannot_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "simulate", "-f", manifest(tmp_path, "8Gi", "8", "24"), objects={}, sizes=TEXT)[0] == 3
    printed = capsys.readouterr()
    assert [line.split()[:4] for line in printed.out.splitlines()[1:]] == [["default/p0", "-", "-", "0"]]
    unknown = (
        "2 pods: the largest GPU has 24 GiB, which is enough; which node has room is not known: simulate needs to list nodes and all pods. "
        "As you are: create the pod, then kubectl gpushare explain POD\n"
    )
    assert printed.err.endswith(f"warning: {unknown}")
    assert run(tmp_path, "simulate", "-f", manifest(tmp_path, "8", "24"), objects={}, sizes=TEXT)[0] == 1
    assert capsys.readouterr() == ("", f"kubectl gpushare: {unknown}")
    assert run(tmp_path, "simulate", "-f", manifest(tmp_path, "8Gi"), objects={})[0] == 1
    assert "1 pod: the sizes of GPUs are not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("explain", "-A"), "explain -A needs to list nodes and all pods. As you are: kubectl gpushare pods"),
        (
            ("explain", "-f", "FILE"),
            "explain -f needs to list nodes and all pods. As you are: create the pod, then kubectl gpushare explain p0",
        ),
        (("status",), "status needs to list nodes and all pods. As you are: kubectl gpushare pods"),
        (("gpus",), "kubectl gpushare gpus needs to list nodes and all pods. As you are: kubectl gpushare pods"),
        (("drain", "gpu1", "0"), "drain needs to list nodes and all pods. As you are: ask an administrator of the cluster"),
    ],
)
def test_errors_say_what_he_can_run(argv: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = manifest(tmp_path, "8")
    assert run(tmp_path, *(file if one == "FILE" else one for one in argv), objects={}, sizes=TEXT)[0] == 1
    assert capsys.readouterr().err == f"kubectl gpushare: {words}\n"


@pytest.mark.parametrize("argv", [("pods",), ("explain", "x")])
def test_in_a_namespace_that_is_not_his_he_is_told_to_name_another(
    argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *argv, objects={}, namespace="other", sizes=TEXT)[0] == 1
    assert "It needs to list pods in namespace other (-n names another)" in capsys.readouterr().err


def test_as_json_it_has_the_form_of_everybodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "pods", "-o", "json", objects={f"{PODS}/big": large()}, sizes=TEXT)[0] == 0
    made = json.loads(capsys.readouterr().out)
    check(made)
    assert [one["reason"] for one in made["pending"]] == [EVENT, ""]
