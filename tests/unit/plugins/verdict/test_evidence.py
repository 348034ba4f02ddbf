# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How the judge of verify comes to its evidence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._judge.verify import VerifyJudge

RUNTIME = Path(__file__).resolve().parents[4] / "files/gpushare_runtime"


def test_the_evidence_of_the_cluster_is_taken_from_one_host() -> None:
    """All hosts have it, and Ansible copies it each time it is read; its size is that of the cluster."""
    looked: Counter[str] = Counter()

    class Variables(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            looked[key] += 1
            return super().get(key, default)

    hosts = {f"gpu{number}": Variables(seen={"seen": {}}, cluster={"seen": {"pods": []}} if number else None) for number in range(9)}
    options = {"seen": "seen", "cluster": "cluster", "probed": "", "runtime": str(RUNTIME), "probes": {}, "namespace": "default"}
    options.update(hosts=list(hosts), unproven={}, required=False)
    evidence = VerifyJudge(None, {})._evidence(options, {"hostvars": hosts})
    assert (evidence.cluster, dict(looked)) == ({"pods": []}, {"seen": 9, "cluster": 2})
