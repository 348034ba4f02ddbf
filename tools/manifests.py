# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/manifests and the chart's templates, made from the builders; comments and descriptions of its values, made from the variables.

`python tools/manifests.py` checks, `--write` writes. The manifests are for `kubectl apply` without Ansible: with the default variables,
in the namespace gpushare-system.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT / "files/gpushare_runtime"), str(ROOT / "tools/lab")]

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.in_cluster import objects  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values, scheduler_image  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.workloads import pod_monitors  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables  # noqa: E402

import chart  # noqa: E402
import chart_values  # noqa: E402
from gpushare_lab.versions import version  # noqa: E402

FOLDER = Path("docs/manifests")
CHART = Path("charts/gpushare")
#: Of the images, where a cluster has another version it needs another one.
KUBERNETES = f"v{version('kubernetes')}"
HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
# {what}
# Made by tools/manifests.py from plugins/plugin_utils/_manifests/.
"""
EVERYTHING = (
    "gpushare in a cluster. Before you apply it: import the image on every node, name the kube-scheduler of your API server's version,\n"
    "# and label the GPU nodes with gpushare.kubernetes/node=true. docs/operate/kubernetes.md has the steps."
)
DRA = (
    "gpushare in a cluster without a scheduler of its own, from Kubernetes 1.37 on: docs/use/dra.md. Before you apply it: import the\n"
    "# image on every node, and label the GPU nodes with gpushare.kubernetes/node=true."
)
NAMES = "From Kubernetes 1.36 on: pods that ask for aliyun.com/* and name no scheduler get gpushare-scheduler."

MONITORS = "For Prometheus' operator, where the playbook has installed gpushare with gpushare_cluster_metrics."


class _Dumper(yaml.SafeDumper):
    """No aliases, lists below their key, and texts of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    str, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)
)


def values() -> Values:
    """The defaults of the variables."""
    return Values(image=str(variables(ROOT)["gpushare_image"].spec["default"]), scheduler_image=scheduler_image(KUBERNETES))


def printed(made: Iterable[Any], what: str) -> str:
    """As YAML, a document for each object."""
    documents = (yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=136, allow_unicode=True) for one in made)
    return HEADER.format(what=what) + "".join(f"---\n{document}" for document in documents)


def files() -> dict[str, str]:
    """Path to what it must be."""
    made = objects(values())
    names = [one for one in made if one["kind"].startswith("Mutating")]
    return {
        f"{FOLDER}/gpushare.yaml": printed([one for one in made if one not in names], EVERYTHING),
        f"{FOLDER}/scheduler-name.yaml": printed(names, NAMES),
        f"{FOLDER}/dra/gpushare-dra.yaml": printed(objects(replace(values(), backend="dra")), DRA),
        f"{FOLDER}/prometheus/pod-monitors.yaml": printed(pod_monitors(values()), MONITORS),
        **{f"{CHART}/templates/{name}": text for name, text in chart.templates().items()},
        f"{CHART}/values.yaml": chart_values.commented(),
        f"{CHART}/values.schema.json": chart_values.schema(),
    }


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        for name, text in files().items():
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(text)
    stale = [name for name, text in files().items() if not (ROOT / name).is_file() or (ROOT / name).read_text() != text]
    if stale:
        sys.exit(f"{', '.join(stale)} is not as the code makes it; run `python tools/manifests.py --write`")
    print(f"{len(files())} manifests and templates are as the code makes them")


if __name__ == "__main__":
    main()
