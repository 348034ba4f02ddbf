# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/reference/events.md, http.md and permissions.md have what the daemons emit, answer and may do, and no more."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import accounts

import rights
from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.health_server import HealthServer
from gpushare_runtime.daemon.metrics_server import MetricsServer
from tree import REPOSITORY
from unit.fakes.runtime.extender.over_http import extending, synced
from unit.fakes.runtime.kube.fake_api import until

RUNTIME = REPOSITORY / "files/gpushare_runtime/gpushare_runtime"
EVENTS = (REPOSITORY / "docs/reference/events.md").read_text()
HTTP = (REPOSITORY / "docs/reference/http.md").read_text()
ROW = re.compile(r"\| `(GPUShare\w+)` \| (pod|node|node, its pods) \| (extender|device plugin) \| ([^|]+) \| ([^|]+) \|")
REASONS = {name: value for name, value in vars(protocol).items() if name.startswith("EVENT_")}


def used() -> Iterator[tuple[str, str]]:
    """(name of a reason, the daemon whose package names it)."""
    for folder, daemon in (("extender", "extender"), ("device_plugin", "device plugin")):
        for file in (RUNTIME / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in REASONS:
                    yield node.attr, daemon


def test_every_event_has_one_spelling_and_one_row_with_the_daemon_that_reports_it() -> None:
    rows = [found.groups() for found in map(ROW.fullmatch, EVENTS.splitlines()) if found]
    assert len(rows) == EVENTS.count("| `GPUShare"), "a row that is not of the table's form"
    assert {reason: by for reason, _, by, _, _ in rows} == {REASONS[name]: daemon for name, daemon in used()}
    assert sorted(reason for reason, *_ in rows) == sorted(REASONS.values())
    assert all(cause.endswith(".") and cure.endswith(".") for *_, cause, cure in rows)


def test_no_event_of_the_daemons_has_a_reason_of_another_spelling() -> None:
    """Reasons are written in protocol.py alone."""
    written = [
        f"{file.relative_to(RUNTIME)}: {node.value}"
        for file in RUNTIME.rglob("*.py")
        if file.name != "protocol.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"(?i:gpushare)[A-Z]\w+", node.value)
    ]
    assert written == []
    assert all(value.startswith("GPUShare") for value in REASONS.values())


def test_the_object_of_each_event() -> None:
    on_nodes = {reason: on for reason, on, *_ in (found.groups() for found in ROW.finditer(EVENTS)) if on != "pod"}
    main, gpus = ((RUNTIME / "device_plugin" / name).read_text() for name in ("main.py", "publish/gpu_events.py"))
    emitted = re.findall(r'events\.emit, node, "Warning", protocol\.(EVENT_\w+)', main)
    emitted += re.findall(r'emit\(self\._about_node, "(?:Warning|Normal)", protocol\.(EVENT_\w+)', gpus)
    assert {REASONS[name] for name in emitted} == set(on_nodes)
    assert {reason for reason, on in on_nodes.items() if on != "node"} == {protocol.EVENT_GPU_UNUSABLE}
    normal = set(re.findall(r'"Normal", protocol\.(EVENT_\w+)', "".join(file.read_text() for file in RUNTIME.rglob("*.py"))))
    named = re.search(r"Three are normal: ([^.]+)\.", EVENTS)
    assert named
    assert set(re.findall(r"`(\w+)`", named[1])) == {REASONS[name] for name in normal}


def endpoints(heading: str) -> list[tuple[str, str]]:
    """(method, path) of the rows below a heading."""
    section = re.split(r"^## ", HTTP.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return re.findall(r"^\| `(GET|POST) (\S+)` \|", section, re.M)


def test_the_extender_answers_what_is_documented_and_lists_nothing_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with extending(tmp_path) as extender:
            await synced(extender)
            rows = endpoints("The extender")
            for method, path in rows:
                url = f"{extender.url}{path.replace('NODE', 'gpu1')}"
                async with extender.session.request(method, url, data=b"{}" if method == "POST" else None) as response:
                    assert response.status == 200, (method, path)
                async with extender.session.request("PUT", url) as response:
                    open_to_all = path in ("/healthz", "/version", f"{protocol.EXTENDER_PREFIX}/version")
                    assert response.status == (200 if open_to_all else 405), path
            _, text = await extender.get("/nowhere")
            listed = set(re.findall(r"/[\w/-]+", text)) - {"/nowhere"}
            assert listed <= {path for _, path in rows}
            # The original's name of /version is not in the list.
            assert {path for _, path in rows} - listed == {f"{protocol.EXTENDER_PREFIX}/version"}

    asyncio.run(run())


def test_the_health_pages_are_the_documented_ones() -> None:
    assert {path for _, path in endpoints("Health")} == set(HealthServer(("127.0.0.1", 0), lambda: ([], []))._pages)


def test_the_metrics_page_answers_what_is_documented() -> None:
    async def get(port: int, path: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        text = (await asyncio.wait_for(reader.read(), 5)).decode()
        writer.close()
        return text

    async def run() -> None:
        for health in (None, lambda: (True, "ok")):
            server = MetricsServer(("127.0.0.1", 0), None, lambda: ["x\n"], health)
            task = asyncio.ensure_future(server.run())
            await until(lambda: server.port)  # noqa: B023 - called before the next one
            rows = [path for _, path in endpoints("Metrics")]
            answers = {path: (await get(server.port, path)).split()[1] for path in rows}
            assert answers == {"/metrics": "200", "/healthz": "200" if health else "404"}
            missing = (await get(server.port, "/nowhere")).partition("\r\n\r\n")[2]
            assert {path for path in rows if path in missing} == ({"/metrics", "/healthz"} if health else {"/metrics"})
            task.cancel()

    asyncio.run(run())


def test_each_right_of_an_account_has_its_reason_and_no_reason_is_without_a_right() -> None:
    assert list(rights.unused()) == []
    more = accounts.granted(accounts.PLUGIN, [accounts.rule("", ["secrets"], ["get"])], "gpushare-system")
    with pytest.raises(ValueError, match="secrets"):
        list(rights.with_reasons(more))
    open_policy = {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "gpushare-events"}}
    rule = {"operations": ["CREATE"], "resources": ["events"]}
    with pytest.raises(ValueError, match="failurePolicy"):
        list(rights.policies([{**open_policy, "spec": {"failurePolicy": "Ignore", "matchConstraints": {"resourceRules": [rule]}}}]))
