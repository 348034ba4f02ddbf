# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs are cordoned by the annotation that the device plugin reads."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.device_plugin.node.devices import is_cordoned
from gpushare_runtime.kubectl_gpushare import cordon
from gpushare_runtime.kubectl_gpushare.cordon import annotation, chosen_gpus
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kube.fake_api import FakeApi, fail, kubeconfig, serving, status
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.fakes.runtime.pods import gpu, inventory
from unit.golden import Golden

GPUS = inventory(16, 16, 24)
UUIDS = [one.uuid for one in GPUS.gpus]


@pytest.mark.parametrize(
    ("before", "gpus", "set_it", "after"),
    [
        ("", [1], True, UUIDS[1]),
        ("0", [1], True, f"0,{UUIDS[1]}"),
        ("0, 1", [1], True, "0,1"),
        (UUIDS[1], [1], True, UUIDS[1]),
        ("all", [1], True, "all"),
        ("", [0, 1, 2], True, ",".join(UUIDS)),
        ("GPU-gone", [0], True, f"GPU-gone,{UUIDS[0]}"),
        ("", [1], False, ""),
        ("1", [1], False, ""),
        (f"0,{UUIDS[1]},1", [1], False, "0"),
        ("all", [1], False, f"{UUIDS[0]},{UUIDS[2]}"),
        ("all,1", [0, 1, 2], False, ""),
        ("GPU-gone", [0], False, "GPU-gone"),
    ],
)
def test_the_annotation_and_what_the_device_plugin_makes_of_it(before: str, gpus: list[int], set_it: bool, after: str) -> None:
    made = annotation(before, GPUS, [GPUS.gpus[index] for index in gpus], set_it)
    assert made == after
    for index, one in enumerate(GPUS.gpus):
        assert is_cordoned(made, one) is (set_it if index in gpus else is_cordoned(before, one))


def test_gpus_by_index_by_uuid_and_all(golden: Golden) -> None:
    assert [one.index for one in chosen_gpus(GPUS, "a", ["2", UUIDS[0], "0"])] == [2, 0]
    assert [one.index for one in chosen_gpus(GPUS, "a", ["all"])] == [0, 1, 2]
    with golden.raised(InputError):
        chosen_gpus(GPUS, "a", ["9"])


class Api(FakeApi):
    """Nodes may be patched, by an administrator; `follows`: a device plugin is there."""

    follows = True
    conflicts = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "PATCH" or self.faults:
            return await super().handle(request)
        body = json.loads(await request.read())
        self.bodies.append(body)
        if self.conflicts:
            self.conflicts -= 1
            return status(409, "Conflict", "the object has been modified")
        value: dict[str, Any] = json.loads(json.dumps(self.objects[request.path]))
        text = body["metadata"]["annotations"]["gpushare/cordon"]
        annotations = value["metadata"]["annotations"]
        annotations.pop("gpushare/cordon", None)
        if text is not None:
            annotations["gpushare/cordon"] = text
        if self.follows:
            read = Inventory.from_json(annotations["gpushare/gpus"])
            gpus = tuple(replace(one, cordoned=is_cordoned(text or "", one)) for one in read.gpus)
            annotations["gpushare/gpus"] = replace(read, gpus=gpus).to_json()
        return web.json_response(await self.put(request.path, value))


def run(tmp_path: Path, *argv: str, api: FakeApi | None = None) -> tuple[int, FakeApi]:
    async def go() -> tuple[int, FakeApi]:
        async with serving(api or Api()) as server:
            await server.put("/api/v1/nodes/a", node("a", "10.0.0.1", 16, 16))
            await server.put("/api/v1/nodes/cp1", {"metadata": {"name": "cp1"}})
            (tmp_path / "config").write_text(kubeconfig(server.url))
            return await asyncio.to_thread(main, [*argv, "--kubeconfig", str(tmp_path / "config")]), server

    return asyncio.run(go())


def test_cordon_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = Api()
    api.conflicts = 2
    code, _ = run(tmp_path, "cordon", "a", "1", api=api)
    assert (code, capsys.readouterr().out) == (0, "node/a GPU 1 cordoned\n")
    assert api.objects["/api/v1/nodes/a"]["metadata"]["annotations"]["gpushare/cordon"] == gpu(1, 16).uuid
    assert len(api.bodies) == 3
    assert all(body["metadata"]["resourceVersion"] for body in api.bodies)


def test_what_is_so_already_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, api = run(tmp_path, "uncordon", "a", "0", "1")
    assert (code, api.bodies, capsys.readouterr().out) == (0, [], "node/a GPU 0,1 already uncordoned\n")


def test_a_node_on_which_nobody_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    api = Api()
    api.follows = False
    monkeypatch.setattr(cordon.set_cordon, "__defaults__", (0.0,))
    assert run(tmp_path, "cordon", "a", "all", api=api)[0] == 1
    golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("cordon", "a", "7"), "found no GPU '7' on node 'a'"),
        (("cordon", "cp1", "0"), "node 'cp1' has no annotation gpushare/gpus"),
        (("cordon", "none", "0"), "kubectl gpushare: found no node 'none'; there are: a\n"),
        (("uncordon", "..", "0"), "'..' cannot be part of an API path"),
    ],
)
def test_what_does_not_exist(argv: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, *argv)[0] == 1
    assert said in capsys.readouterr().err


def test_who_may_not_list_nodes_is_not_told_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    api = Api()
    api.faults = [fail(404, "NotFound"), fail(403, "Forbidden")]
    assert run(tmp_path, "cordon", "none", "0", api=api)[0] == 1
    golden(capsys.readouterr().err)


def test_without_the_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = Api()
    api.faults = [fail(403, "Forbidden", 'nodes "a" is forbidden')]
    assert run(tmp_path, "cordon", "a", "0", api=api)[0] == 1
    assert 'nodes "a" is forbidden; it needs to get and patch nodes' in capsys.readouterr().err


# Drain.


class Evicting(Api):
    """Pods may be evicted, but for those that a budget keeps; budget: name → how many times it says no. rejected: name → status."""

    def __init__(self) -> None:
        super().__init__()
        self.budget: dict[str, int] = {}
        self.rejected: dict[str, int] = {}
        self.evicted: list[tuple[str, dict[str, Any]]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/eviction"):
            return await super().handle(request)
        body, name = json.loads(await request.read()), request.path.split("/")[-2]
        if self.budget.get(name):
            self.budget[name] -= 1
            return status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        if name in self.rejected:
            return status(self.rejected[name], "Odd", "it does not want that")
        self.evicted.append((name, body["deleteOptions"]))
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)


async def fill_pods(api: FakeApi) -> None:
    owners = {"b": "ReplicaSet", "c": "ReplicaSet", "d": "DaemonSet", "other": "Job"}
    for name, index in (("alone", 1), ("b", 1), ("c", 1), ("d", 1), ("other", 0)):
        raw = pod(name, "a", gpu=index, mem=2)
        if name in owners:
            raw["metadata"]["ownerReferences"] = [{"kind": owners[name], "name": "x"}]
        await api.put(f"/api/v1/namespaces/default/pods/{name}", raw)


@pytest.mark.parametrize("force", [False, True])
def test_a_drained_gpu_is_cordoned_and_its_pods_are_evicted(
    force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cordon, "_RETRY_SECONDS", 0.01)
    api = Evicting()
    api.budget = {"b": 2}
    asyncio.run(fill_pods(api))
    code, _ = run(tmp_path, "drain", "a", "1", *(["--force"] if force else []), api=api)
    alone = "evicted" if force else "stays: it has no owner that would start it again; --force evicts it all the same"
    assert capsys.readouterr().out == (
        "node/a GPU 1 cordoned\n"
        f"pod/alone in default {alone}\n"
        "pod/b in default evicted\n"
        "pod/c in default evicted\n"
        "pod/d in default stays: it is of a DaemonSet, which would start it again on this node\n"
    )
    assert code == 1
    assert [name for name, _ in api.evicted] == [*(["alone"] if force else []), "b", "c"]
    assert all(options == {"preconditions": {"uid": f"uid-{name}"}} for name, options in api.evicted)
    assert api.objects["/api/v1/nodes/a"]["metadata"]["annotations"]["gpushare/cordon"] == gpu(1, 16).uuid


def test_a_dry_run_asks_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = Evicting()
    api.budget = {"c": 10**6}
    asyncio.run(fill_pods(api))
    assert run(tmp_path, "drain", "a", "1", "--dry-run", api=api)[0] == 0
    assert "pod/c in default stays: Cannot evict pod as it would violate the pod's disruption budget. (dry run)" in capsys.readouterr().out
    assert [(name, options["dryRun"]) for name, options in api.evicted] == [("b", ["All"])]
    assert api.budget == {"c": 10**6 - 1}, "the client has repeated what a budget forbids"
    assert "gpushare/cordon" not in api.objects["/api/v1/nodes/a"]["metadata"]["annotations"]


def test_a_pod_that_cannot_be_evicted_keeps_none_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """A pod with two budgets is an internal error (500) to the API server, and a webhook may reject one (403)."""
    api = Evicting()
    api.rejected = {"alone": 500, "b": 403}
    asyncio.run(fill_pods(api))
    assert run(tmp_path, "drain", "a", "1", "--force", api=api)[0] == 1
    golden(capsys.readouterr().out)
    assert [name for name, _ in api.evicted] == ["c"]


def test_a_budget_that_never_allows_it_and_a_node_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = Evicting()
    api.budget = {"other": 10**6}
    asyncio.run(fill_pods(api))
    assert run(tmp_path, "drain", "a", "0", "--timeout", "0", api=api)[0] == 1
    assert "pod/other in default stays: Cannot evict pod" in capsys.readouterr().out
    assert api.budget == {"other": 10**6 - 1}, "the client has repeated what a budget forbids"
    assert run(tmp_path, "drain", "nowhere", "0")[0] == 1
    assert "found no node 'nowhere' with shared GPUs; there are: a" in capsys.readouterr().err
