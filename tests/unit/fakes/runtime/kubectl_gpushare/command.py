# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare` against an API server with a few objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod

OBJECTS = {
    "/api/v1/nodes/gpu1": node("gpu1", "10.0.0.1", 16, 16),
    "/api/v1/nodes/cp1": {"metadata": {"name": "cp1"}, "status": {"allocatable": {"cpu": "2"}}},
    "/api/v1/namespaces/default/pods/p": pod("p", "gpu1", gpu=1, mem=6),
    "/api/v1/namespaces/team/pods/t": pod("t", "gpu1", gpu=0, mem=2, namespace="team"),
    "/api/v1/namespaces/team/pods/w": pod("w", None, phase="Pending", mem=2, namespace="team"),
}


async def fill_api(api: FakeApi) -> None:
    for path, value in OBJECTS.items():
        await api.put(path, json.loads(json.dumps(value)))


def run(tmp_path: Path, *argv: str, faults: Callable[[], list[Any]] = list, namespace: str = "") -> tuple[int, FakeApi]:
    """The command against a server with these objects, with its kubeconfig at ~/.kube/config."""

    async def go() -> tuple[int, FakeApi]:
        async with serving(FakeApi()) as api:
            await fill_api(api)
            api.faults = faults()
            config = yaml.safe_load(kubeconfig(api.url))
            if namespace:
                config["contexts"][0]["context"]["namespace"] = namespace
            (tmp_path / ".kube").mkdir()
            (tmp_path / ".kube/config").write_text(yaml.safe_dump(config))
            return await asyncio.to_thread(main, argv), api

    return asyncio.run(go())
