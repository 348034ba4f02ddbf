# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The values of the chart with their variables and meanings: the table of its README, and the descriptions in its schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections")]

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables  # noqa: E402

import variables as descriptions  # noqa: E402

CHART: Final = ROOT / "charts/gpushare"
SCHEMA: Final = CHART / "values.schema.json"
_OF: Final = "Requests and limits of {}, as in Kubernetes. Each amount that is left out keeps its default."
#: Values of the chart whose variable has another name, or none; with their meaning where they have none.
_OTHER_NAMES: Final = {
    "resources.scheduler": ("", _OF.format("kube-scheduler")),
    "resources.extender": ("", _OF.format("the extender")),
    "resources.devicePlugin": ("", _OF.format("the device plugin")),
    "resources.dashboard": ("", _OF.format("the dashboard")),
    "imagePullSecrets": ("", "Secrets of the namespace by which its pods pull their images, each as `{name: NAME}`."),
    "replicas": ("", "Number of the scheduler's pods. The playbook chooses it by the number of nodes without GPUs."),
    "apiServer.host": ("gpushare_api_server", "Name or address of the API server. Empty means the Service `kubernetes`."),
    "apiServer.port": ("gpushare_api_server", "Its port. Without a host it has no effect."),
    "metrics.enabled": ("gpushare_cluster_metrics", ""),
    "metrics.podMonitor": ("", "Whether Prometheus' operator gets PodMonitors for the metrics. Its kind must be there."),
    "dashboard.enabled": ("gpushare_cluster_dashboard", ""),
    "dashboard.hostName": ("gpushare_cluster_dashboard_host_names", ""),
}


class Value(NamedTuple):
    """variable: of the collection, "" for none."""

    default: Any
    variable: str
    meaning: str


def values() -> dict[str, Value]:
    """By name; a value of an object has the object's name and a dot in front."""
    known, given = variables(ROOT), yaml.safe_load((CHART / "values.yaml").read_text())
    nested = {f"{key}.{inner}": one for key, value in given.items() if isinstance(value, dict) and value for inner, one in value.items()}
    flat = {key: value for key, value in given.items() if not (isinstance(value, dict) and value)}
    found = {}
    for name, default in {**flat, **nested}.items():
        variable, meaning = _OTHER_NAMES.get(name, (presets.variable(name), ""))
        words = meaning or descriptions.cell(next(iter(descriptions.specs_of(variable, known[variable])[1].values())))
        found[name] = Value(default, variable, words.replace("\\|", "|"))
    return found


def described(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the chart's values with the meaning of each one as its description."""
    known = values()

    def properties(of: Mapping[str, Any], above: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, one in of.items():
            bare = {key: value for key, value in one.items() if key != "description"}
            if f"{above}{name}" in known:
                yield name, {"description": known[f"{above}{name}"].meaning, **bare}
            elif "properties" in bare:
                yield name, {**bare, "properties": dict(properties(bare["properties"], f"{above}{name}."))}
            else:
                yield name, bare

    return {**schema, "properties": dict(properties(schema["properties"], ""))}


def schema() -> str:
    """values.schema.json as it must be."""
    return json.dumps(described(json.loads(SCHEMA.read_text())), indent=2, ensure_ascii=False) + "\n"
