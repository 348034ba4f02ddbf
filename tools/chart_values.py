# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The values of the chart with their meanings for people with Helm: the table of its README, comments, descriptions of its schema.

A meaning is the chart's own, or that of the variable with the chart's names in it. One that speaks of Ansible is an error.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections")]

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import Variable, variables  # noqa: E402

import variables as descriptions  # noqa: E402
from settings_files import DAEMONS  # noqa: E402

CHART: Final = ROOT / "charts/gpushare"
SCHEMA: Final = CHART / "values.schema.json"
VALUES: Final = CHART / "values.yaml"
_WIDTH: Final = 136
_OF: Final = "Requests and limits of {}, as in Kubernetes. Each amount that is left out keeps its default."
#: Values of the chart whose variable has another name, or none.
_OTHER_NAMES: Final = {
    **dict.fromkeys(("resources.scheduler", "resources.extender", "resources.devicePlugin", "resources.dashboard"), ""),
    **dict.fromkeys(("imagePullSecrets", "replicas", "metrics.podMonitor", "scheduler.tolerations", "scheduler.nodeSelector"), ""),
    "apiServer.host": "gpushare_api_server",
    "apiServer.port": "gpushare_api_server",
    "metrics.enabled": "gpushare_cluster_metrics",
    "dashboard.enabled": "gpushare_cluster_dashboard",
    "dashboard.hostName": "gpushare_cluster_dashboard_host_names",
}
#: Of values without a variable, and of those whose variable does more or something else by Ansible. Choices come from the schema. Those of
#: a daemon's settings stand with the setting.
_MEANINGS: Final = {
    **{each.chart: each.meaning for daemon in DAEMONS for each in daemon.of_chart if each.meaning},
    "resources.scheduler": _OF.format("kube-scheduler"),
    "resources.extender": _OF.format("the extender") + " Raise the memory for thousands of nodes: docs/operate/footprint.md.",
    "resources.devicePlugin": _OF.format("the device plugin"),
    "resources.dashboard": _OF.format("the dashboard"),
    "backend": "Counter of GPU memory. `extender`: a scheduler for pods with GPUs, which the chart brings. `dra`: the cluster's own "
    "scheduler, by claims, from Kubernetes 1.37 on; values of the scheduler and of policies then have no effect.",
    "imagePullSecrets": "Secrets of the namespace by which its pods pull their images, each as `{name: NAME}`.",
    "replicas": "Number of the scheduler's pods. One is active, and another one takes over when it fails. With `backend: dra` number "
    "of the pods that keep the templates of claims.",
    "scheduler.tolerations": "Tolerations of the scheduler's pods, as in Kubernetes, such as for a node group of their own. They tolerate "
    "the taint `node-role.kubernetes.io/control-plane` anyway.",
    "scheduler.nodeSelector": "More labels that a node must have for the scheduler's pods, with their values.",
    "apiServer.host": "Name or address of the API server. Empty means the Service `kubernetes`.",
    "apiServer.port": "Its port. Without a host it has no effect.",
    "metrics.podMonitor": "Whether Prometheus' operator gets PodMonitors for the metrics. Its kind must be there.",
    "openshift": "Whether the cluster is OpenShift. The chart then makes SecurityContextConstraints for the pods. The labels of the "
    "namespace are yours to set: docs/operate/openshift.md.",
    "annotationWriters": "More users that may write gpushare's annotations, and place pods with GPU memory by `spec.nodeName`, as the "
    "API server names them. Administrators that are not ServiceAccounts may do so anyway.",
    "percentageOfNodesToScore": "Percentage of the nodes that kube-scheduler searches before it chooses among the feasible ones. 0 is "
    "Kubernetes' own sampling, which searches fewer in clusters of more than 100 nodes.",
    "prometheus": "URL of the Prometheus that scrapes the device plugins. The ConfigMap `gpushare-info` in `kube-public` then has it, "
    "which every user of the cluster may read, and `kubectl gpushare top` takes it from there. Empty means no such ConfigMap.",
    "dashboard.enabled": "Whether the dashboard runs in the cluster. People bring tokens of their own and see the pods that these may "
    "list.",
}
#: Words that mean nothing to people with Helm, or that the chart does not have.
_OF_ANSIBLE: Final = re.compile(r"gpushare_\w+|[Pp]reflight|playbook|inventory|the role|`mps`|\bMPS\b|`site`|`uninstall`")


class Value(NamedTuple):
    """variable: of the collection, "" for none."""

    default: Any
    variable: str
    meaning: str


def values() -> dict[str, Value]:
    """By name; a value of an object has the object's name and a dot in front."""
    known, given = variables(ROOT), yaml.safe_load(VALUES.read_text())
    nested = {f"{key}.{inner}": one for key, value in given.items() if isinstance(value, dict) and value for inner, one in value.items()}
    flat = {key: value for key, value in given.items() if not (isinstance(value, dict) and value)}
    every = {**flat, **nested}
    names = {presets.variable(name): name for name in every}
    found = {}
    for name, default in every.items():
        variable = _OTHER_NAMES.get(name, presets.variable(name))
        found[name] = Value(default, variable, _meaning(name, known[variable] if variable else None, names))
    return found


def _meaning(name: str, variable: Variable | None, names: Mapping[str, str]) -> str:
    """names: those of the chart by variable. ValueError for words of Ansible."""
    own = _MEANINGS.get(name, "")
    if not own and variable:
        words = descriptions.cell(next(iter(descriptions.specs_of(variable.name, variable)[1].values())))
        own = re.sub(r"gpushare_\w+", lambda found: names.get(found[0], found[0]), words.replace("\\|", "|"))
    elif choices := json.loads(SCHEMA.read_text())["properties"].get(name, {}).get("enum"):
        own += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
    if wrong := _OF_ANSIBLE.search(own):
        raise ValueError(f"value {name} of the chart: found {wrong[0]!r} in its meaning; expected words for Helm; write one into _MEANINGS")
    return own


def commented() -> str:
    """values.yaml with the meaning of each value above it. What stands above the first empty line is written by hand."""
    known, above, lines = values(), "", []
    head, _, rest = VALUES.read_text().partition("\n\n")
    for line in rest.splitlines():
        if line.lstrip().startswith("#"):
            continue
        name = line.strip().partition(":")[0]
        indent = line[: len(line) - len(line.lstrip())]
        above = above if indent else name
        one = known.get(f"{above}.{name}" if indent else name)
        words = textwrap.wrap(one.meaning, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) if one else ()
        lines += [*(f"{indent}# {part}" for part in words), line]
    return f"{head}\n\n" + "\n".join(lines) + "\n"


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
