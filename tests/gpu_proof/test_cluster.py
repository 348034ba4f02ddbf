# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What can be known of the cluster of one node without a GPU: its pods, the end of a playbook's output, and how waiting ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_proof import cluster, one_node


def test_a_pod_leaves_a_gib_for_its_context() -> None:
    made = cluster.pod("a", 8, 3)["spec"]["containers"][0]
    assert made["command"][1:3] == ["7168", "3000"]
    assert made["resources"]["limits"] == {"aliyun.com/gpu-mem": 8}
    assert cluster.pod("whole", 1, 4, "aliyun.com/gpu-count")["spec"]["containers"][0]["command"][1] == "2048"


def test_the_recap_of_the_last_play_is_read() -> None:
    said = "gpu1 : ok=1 changed=1\nPLAY RECAP ***\ngpu1                       : ok=90   changed=0    unreachable=0    failed=2  \n"
    assert cluster.recap(said) == {"ok": 90, "changed": 0, "unreachable": 0, "failed": 2}
    assert cluster.recap("ERROR! no such playbook") == {}


def test_a_command_that_fails_or_hangs_says_so_and_leaves_its_words(tmp_path: Path) -> None:
    log = tmp_path / "words"
    with pytest.raises(one_node.Failed, match="ended with 3: why"):
        one_node.done("sh", "-c", "echo why >&2; exit 3", log=log)
    with pytest.raises(one_node.Failed, match="did not end within"):
        one_node.done("sh", "-c", "echo first; sleep 60", seconds=0.5, log=log)
    assert log.read_text() == "first\n"


def test_waiting_ends_with_the_last_trouble() -> None:
    assert one_node.until("", lambda: 7, 5) == 7
    with pytest.raises(one_node.Failed, match="never: 'found nothing'"):
        one_node.until("never", lambda: json.loads("{}")["found nothing"], 0.5)
