# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
""" "My pod is Pending": from what kubectl shows over the row of the page to a pod that runs, by the commands of that row alone."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from docs.conftest import Shell, shell
from docs.faults import CODES, FULL, NO_EXTENDER, NO_UNITS, PAGE, PENDING, TOO_LARGE
from docs.pages import codes, rows, section
from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, GPU_NODES, MEMORY, Cluster, CommandError
from e2e.manifests import pod

_DOCTOR = "/opt/gpushare/current/bin/gpushare-doctor"


@pytest.fixture
def line(installed: Cluster, tmp_path: Path) -> Shell:
    return shell(installed, tmp_path)


def row_of(message: str, words: str) -> list[str]:
    """The row that the message leads to, which must be the one with these words."""
    found = [row for row in rows(section(PAGE, PENDING)) if any(text in message for text in codes(row[0]))]
    assert [row for row in found if words in codes(row[0])], f"no row for {words!r} fits the message:\n{message}"
    return next(row for row in found if words in codes(row[0]))


def described(line: Shell, name: str) -> str:
    """The end of `kubectl describe pod`, which the page lets people read."""
    return line(f"kubectl describe pod {name}").partition("Events:")[2]


def waits(cluster: Cluster, line: Shell, name: str, words: str) -> list[str]:
    """The row of a pod that waits for this reason."""
    cluster.until(f"kubectl describe pod {name} has {words}", lambda: words in described(line, name), 60, name)
    return row_of(described(line, name), words)


def units(node: Json) -> int:
    """Allocatable units of a node."""
    return int(node["status"]["allocatable"].get(MEMORY, 0))


def doctor(cluster: Cluster, host: str) -> str:
    """What it prints, also with findings."""
    try:
        return cluster.on(host, _DOCTOR)
    except CommandError as error:
        return str(error)


def cure_of(code: str) -> str:
    """What the page says to do for a code of the doctor."""
    found = [row for row in rows(section(PAGE, CODES)) if code in codes(row[0])]
    assert len(found) == 1, f"{PAGE} has {len(found)} rows for {code}"
    return found[0][3]


def test_too_large(installed: Cluster, line: Shell) -> None:
    installed.create(pod("big", memory=25))
    row = waits(installed, line, "big", TOO_LARGE)
    assert "fewer units" in row[2]
    largest = max(int(found) for found in re.findall(rf"{TOO_LARGE} (\d+)", described(line, "big")))
    installed.delete("big")
    installed.create(pod("big", memory=largest))
    installed.until_running("big")


def test_full(installed: Cluster, line: Shell) -> None:
    # 7, 7, 7 and 11 units stay free: more than 12 on each node, and 12 on no GPU.
    for number, (node, units) in enumerate([("gpu1", 9), ("gpu1", 9), ("gpu2", 9), ("gpu2", 13)]):
        installed.create(pod(f"other-{number}", memory=units, node=node))
        installed.until_running(f"other-{number}")
    installed.create(pod("waiting", memory=12))
    row = waits(installed, line, "waiting", FULL)
    (explain,) = [text for text in codes(row[2]) if text.startswith("kubectl gpushare explain")]
    with pytest.raises(CommandError) as told:
        line(explain.replace("POD", "waiting"))
    end = re.findall(r"end default/(other-\d)", str(told.value))
    assert end, told.value
    installed.delete(end[0])
    installed.until_running("waiting")


def test_cordoned(installed: Cluster, line: Shell) -> None:
    for node in GPU_NODES:
        line(f"kubectl gpushare cordon {node} all")
    try:
        # The extender hears of it after the command, under load half a second.
        time.sleep(3)
        installed.create(pod("waiting", memory=2))
        waits(installed, line, "waiting", NO_UNITS)
        assert "cordoned" in line("kubectl gpushare gpus")
        commands = codes(" ".join(row[2] for row in rows(section(PAGE, "A node has too few units"))))
        assert "kubectl gpushare gpus" in commands
        (cure,) = [text for text in commands if text.startswith("kubectl gpushare uncordon")]
        for node in GPU_NODES:
            line(cure.replace("NODE", node).replace("GPU", "all"))
        installed.until_running("waiting")
    finally:
        for node in GPU_NODES:
            installed.annotate(f"/api/v1/nodes/{node}", {"gpushare/cordon": None})


def test_no_extender(installed: Cluster, line: Shell) -> None:
    installed.stop(CONTROL_PLANE, "gpushare-extender")
    try:
        installed.create(pod("waiting", memory=2))
        row = waits(installed, line, "waiting", NO_EXTENDER)
        program, cure = codes(row[2])
        assert program == "gpushare-doctor"
        assert "extender_down" in doctor(installed, CONTROL_PLANE)
        assert "systemctl restart" in cure_of("extender_down")
        installed.on(CONTROL_PLANE, *cure.split())
        installed.until_running("waiting", seconds=90)
    finally:
        installed.on(CONTROL_PLANE, "systemctl", "start", "gpushare-extender")


def test_no_device_plugin(installed: Cluster, line: Shell) -> None:
    for node in GPU_NODES:
        installed.on(node, "systemctl", "stop", "gpushare-device-plugin")
    try:
        # Before that kubelet fails the pods that it admits, which is another row of the page.
        installed.until("no node has units", lambda: not any(units(node) for node in installed.nodes()), 120)
        installed.create(pod("waiting", memory=2))
        waits(installed, line, "waiting", NO_UNITS)
        told = [text for row in rows(section(PAGE, "A node has too few units")) for text in codes(row[2])]
        (status,) = [text for text in told if "systemctl status" in text]
        with pytest.raises(CommandError, match="inactive"):
            installed.on("gpu1", *status.split())
        assert "plugin_stopped" in doctor(installed, "gpu1")
        assert "systemctl restart" in cure_of("plugin_stopped")
        for node in GPU_NODES:
            installed.on(node, "systemctl", "restart", "gpushare-device-plugin")
        installed.until_running("waiting", seconds=90)
    finally:
        for node in GPU_NODES:
            installed.on(node, "systemctl", "start", "gpushare-device-plugin")


def test_in_bytes(installed: Cluster, line: Shell) -> None:
    manifest = pod("bytes", memory=1)
    manifest["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "10G"
    installed.create(manifest)
    assert "GPUShareRequestTooLarge" in section(PAGE, PENDING)
    installed.until("the Event states the number", lambda: "GPUShareRequestTooLarge" in described(line, "bytes"), 60, "bytes")
    assert re.search(r"write \S*10\b|10 for", described(line, "bytes")), described(line, "bytes")
