# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/operate/monitoring/dashboard.json from the list of its panels: `python -m monitoring.dashboard --write`. Grafana's panels only."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from tree import REPOSITORY

FILE: Final = REPOSITORY / "docs/operate/monitoring/dashboard.json"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
#: Grafana's grid has so many columns.
COLUMNS: Final = 24
NAMESPACES: Final = 'namespace=~"$namespace"'
NODES: Final = 'instance=~"$instance"'
GPU: Final = "{{instance}} GPU {{gpu}}"
ALLOCATED: Final = f"sum by (namespace, pod) (pod_gpu:gpushare_memory_allocated_bytes{{{NAMESPACES}}})"
USED: Final = f"sum by (namespace, pod) (pod_gpu:gpushare_memory_used_bytes{{{NAMESPACES}}})"
BUSY: Final = f"sum by (namespace, pod) (gpushare_device_plugin_pod_sm_utilization_ratio{{{NAMESPACES}}})"
IDLE: Final = f"sum by (namespace, pod, gpu) (time() - gpushare_device_plugin_pod_idle_since_timestamp_seconds{{{NAMESPACES}}})"
XIDS: Final = f"sum by (instance, uuid, xid) (increase(gpushare_device_plugin_xid_errors_total{{{NODES}}}[1h]))"


@dataclass(frozen=True)
class Panel:
    """queries: (PromQL, legend). unit: Grafana's name of it. most: end of the scale, where it has one.

    value: title of the column with the values of a table. trouble: from so much on a number is red, and green below; None: it is neither.
    """

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 12
    height: int = 8
    most: float | None = None
    description: str = ""
    value: str = ""
    trouble: float | None = None


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Cluster",
        (
            Panel("Memory of all GPUs", "stat", (("cluster:gpushare_memory_bytes:sum", ""),), "bytes", 4, 4),
            Panel(
                "Allocated", "gauge", (("cluster:gpushare_memory_allocated_bytes:sum / cluster:gpushare_memory_bytes:sum", ""),),
                "percentunit", 4, 4, 1,
            ),
            Panel(
                "Used", "gauge", (("cluster:gpushare_memory_used_bytes:sum / cluster:gpushare_memory_bytes:sum", ""),),
                "percentunit", 4, 4, 1,
            ),
            Panel(
                "Allocated and idle", "gauge", (("cluster:gpushare_memory_idle:ratio", ""),), "percentunit", 4, 4, 1,
                "Part of the allocated memory that its pods do not use.",
            ),
            Panel("Waiting pods", "stat", (("sum(max by (reason) (gpushare_extender_pods_waiting))", ""),), "none", 4, 4),
            Panel(
                "GPUs that are not healthy", "stat", (("count(gpushare_device_plugin_gpu_healthy == 0) or vector(0)", ""),), "none", 4, 4,
                trouble=1,
            ),
            Panel(
                "Memory", "timeseries",
                (
                    ("cluster:gpushare_memory_bytes:sum", "gpus"),
                    ("cluster:gpushare_memory_allocated_bytes:sum", "allocated"),
                    ("cluster:gpushare_memory_used_bytes:sum", "used"),
                ),
                "bytes",
            ),
            Panel(
                "Pods that wait for room", "timeseries", (("max by (room) (gpushare_extender_pods_waiting_room)", "{{room}}"),), "none",
                description="enough: something else than memory keeps them. fragmented: the free memory is on too many GPUs.",
            ),
        ),
    ),
    (
        "GPUs",
        (
            Panel(
                "Allocated memory by GPU", "bargauge",
                ((f"gpu:gpushare_memory_allocated_bytes{{{NODES}}} / gpu:gpushare_memory_bytes{{{NODES}}}", GPU),),
                "percentunit", most=1,
            ),
            Panel(
                "Used memory by GPU", "timeseries",
                ((f"gpushare_device_plugin_gpu_memory_used_bytes{{{NODES}}}", GPU),), "bytes",
            ),
            Panel(
                "Load of the SMs by GPU", "timeseries", ((f"gpushare_device_plugin_gpu_sm_utilization_ratio{{{NODES}}}", GPU),),
                "percentunit", most=1, description="Part of the time in which an SM of the GPU was busy. None of GPUs with MIG.",
            ),
            Panel(
                "Load of the memory's bus by GPU", "timeseries",
                ((f"gpushare_device_plugin_gpu_memory_bandwidth_utilization_ratio{{{NODES}}}", GPU),), "percentunit", most=1,
            ),
            Panel(
                "Temperature", "timeseries", ((f"gpushare_device_plugin_gpu_temperature_celsius{{{NODES}}}", GPU),), "celsius", 8,
            ),
            Panel(
                "Power, of the limit of each GPU", "timeseries",
                (
                    (
                        f"gpushare_device_plugin_gpu_power_watts{{{NODES}}} / gpushare_device_plugin_gpu_power_limit_watts{{{NODES}}}",
                        GPU,
                    ),
                ),
                "percentunit", 8, most=1,
            ),
            Panel(
                "GPUs whose clocks are held back", "timeseries",
                ((f"sum by (reason) (gpushare_device_plugin_gpu_clocks_limited{{{NODES}}})", "{{reason}}"),), "none", 8,
            ),
            Panel(
                "Largest free part of a node's GPUs, in units", "timeseries",
                (("max by (node) (gpushare_extender_node_units_free_largest)", "{{node}}"),), "none",
            ),
            Panel(
                "XID errors per hour", "timeseries",
                ((XIDS, "{{uuid}} XID {{xid}}"),),
                "none",
            ),
        ),
    ),
    (
        "Pods",
        (
            Panel(
                "Allocated by namespace", "timeseries",
                ((f"namespace:gpushare_memory_allocated_bytes:sum{{{NAMESPACES}}}", "{{namespace}}"),), "bytes",
            ),
            Panel(
                "Used by namespace", "timeseries",
                ((f"namespace:gpushare_memory_used_bytes:sum{{{NAMESPACES}}}", "{{namespace}}"),), "bytes",
            ),
            Panel(
                "GPUs by namespace", "timeseries",
                (
                    (f"namespace:gpushare_gpus_asked:sum{{{NAMESPACES}}}", "{{namespace}} asks for"),
                    (f"namespace:gpushare_gpus_held:sum{{{NAMESPACES}}}", "{{namespace}} has"),
                    (f"namespace:gpushare_gpus_used:sum{{{NAMESPACES}}}", "{{namespace}} keeps busy"),
                ),
                "none",
            ),
            Panel(
                "Load of the SMs by pod", "timeseries", ((f"topk(20, {BUSY})", "{{namespace}}/{{pod}}"),), "percentunit",
                description="In GPUs: a pod that keeps two GPUs busy has 200 %.",
            ),
            Panel(
                "Pods that leave a GPU idle", "table", ((f"topk(20, {IDLE} / 3600)", ""),), "h", 24, value="idle for",
                description="Pods that keep nothing of a GPU busy now, and since when.",
            ),
            Panel(
                "Pods with the most idle memory", "table",
                (
                    (f"topk(20, {ALLOCATED} - {USED})", ""),
                ),
                "bytes", value="allocated, not used",
            ),
            Panel(
                "Pods that use most of what they have", "table",
                (
                    (f"topk(20, {USED} / {ALLOCATED})", ""),
                ),
                "percentunit", value="used of the allocated",
            ),
        ),
    ),
    (
        "Daemons",
        (
            Panel(
                "Ready", "timeseries",
                (
                    ("gpushare_extender_ready", "extender {{instance}}"),
                    (f"gpushare_device_plugin_healthy{{{NODES}}}", "device plugin {{instance}}"),
                ),
                "none", most=1,
            ),
            Panel(
                "Calls of kube-scheduler per second", "timeseries",
                (("sum by (verb, result) (rate(gpushare_extender_verb_results_total[5m]))", "{{verb}} {{result}}"),), "reqps",
            ),
            Panel(
                "99 % of the calls take less than", "timeseries",
                (
                    (
                        "histogram_quantile(0.99, sum by (verb, le) (rate(gpushare_extender_verb_duration_seconds_bucket[5m])))",
                        "{{verb}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Drift, in units", "timeseries", (("max by (reason) (gpushare_extender_drift_units)", "{{reason}}"),), "none",
                description="Units that nodes report as in use and no pod's annotations have.",
            ),
            Panel(
                "Rejections per hour", "timeseries",
                ((f"increase(gpushare_device_plugin_rejections_total{{{NODES}}}[1h])", "{{instance}}"),), "none",
            ),
            Panel(
                "Memory of the daemons", "timeseries",
                (('process_resident_memory_bytes{job=~"gpushare-extender|gpushare-device-plugin"}', "{{job}} {{instance}}"),), "bytes",
            ),
        ),
    ),
)  # fmt: skip


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "refresh": 2,
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "sort": 1,
    }  # fmt: skip


def colours(of: Panel) -> dict[str, Any]:
    """Without any Grafana paints each value red from 80 on, such as bytes, and green below, such as 3 sick GPUs."""
    if of.trouble is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": of.trouble}]
        return {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    return {"color": {"mode": "fixed", "fixedColor": "blue"}} if of.kind in ("stat", "gauge", "bargauge") else {}


def panel(number: int, of: Panel, x: int, y: int) -> dict[str, Any]:
    table = of.kind == "table"
    scale = {"min": 0, **({"max": of.most} if of.most is not None else {}), **colours(of)}
    made: dict[str, Any] = {
        "id": number, "title": of.title, "type": of.kind, "datasource": SOURCE,
        "gridPos": {"h": of.height, "w": of.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": of.unit, **scale}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend or "__auto",
                **({"instant": True, "format": "table"} if table else {}),
            }
            for at, (expression, legend) in enumerate(of.queries)
        ],
    }  # fmt: skip
    if of.description:
        made["description"] = of.description
    if table:
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {"Value": of.value}}}]
    return made


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, of_row in ROWS:
        panels.append(
            {"id": len(panels) + 1, "title": title, "type": "row", "collapsed": False, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}}
        )
        y, x = y + 1, 0
        for at, one in enumerate(of_row):
            panels.append(panel(len(panels) + 1, one, x, y))
            x += one.width
            if x >= COLUMNS or at == len(of_row) - 1:
                x, y = 0, y + one.height
    return {
        "title": "Shared GPUs", "uid": "gpushare", "tags": ["gpushare"], "schemaVersion": 39, "version": 1, "editable": True,
        "time": {"from": "now-6h", "to": "now"}, "refresh": "30s", "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
                variable("instance", "Node", "label_values(gpushare_device_plugin_healthy, instance)"),
                variable("namespace", "Namespace", "label_values(gpushare_device_plugin_pod_info, namespace)"),
            ]
        },
        "panels": panels,
    }  # fmt: skip


def expressions(board: dict[str, Any]) -> dict[str, str]:
    """Every query of a dashboard, as Prometheus gets it where all nodes and namespaces are selected: by panel and refId."""
    return {
        f"{one['title']} {target['refId']}": target["expr"].replace("$instance", ".*").replace("$namespace", ".*")
        for one in board["panels"]
        for target in one.get("targets", ())
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m monitoring.dashboard --write")
    FILE.write_text(text())
