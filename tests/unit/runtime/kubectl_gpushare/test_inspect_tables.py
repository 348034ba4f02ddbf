# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The two tables, character by character. `$` marks the end of a line, as in `cat -E`: some end in spaces."""

from __future__ import annotations

from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.kubectl_gpushare.inspect_tables import details, summary
from gpushare_runtime.kubectl_gpushare.inspect_usage import read_usage
from unit.fakes.runtime.kubectl_gpushare.objects import node, original_node, pod
from unit.fakes.runtime.pods import inventory


def golden(text: str) -> str:
    return text.replace("$\n", "\n").removeprefix("\n")


NODES = [node("gpu2", "10.89.7.12", 16, 24), node("gpu1", "10.89.7.11", 16, 16)]
SHARING = [pod("share-1", "gpu1", gpu=0, mem=6), pod("share-3", "gpu1", gpu=1, mem=6), pod("share-2", "gpu1", gpu=0, mem=6)]


def test_summary() -> None:
    assert summary(read_usage(NODES, SHARING).nodes) == golden("""
NAME  IPADDRESS   GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)$
gpu1  10.89.7.11  12/16                  6/16                   18/32$
gpu2  10.89.7.12  0/16                   0/24                   0/40$
-----------------------------------------------------$
Allocated/Total GPU Memory In Cluster:$
18/72 (25%)  $
""")


def test_details() -> None:
    assert details(read_usage(NODES, SHARING).nodes) == golden("""
$
NAME:       gpu1$
IPADDRESS:  10.89.7.11$
$
NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  $
share-1      default    6                0                $
share-2      default    6                0                $
share-3      default    0                6                $
Allocated :  18 (56%)   $
Total :      32         $
-------------------------------------------------------------------------$
$
NAME:       gpu2$
IPADDRESS:  10.89.7.12$
$
NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  $
Allocated :  0 (0%)     $
Total :      40         $
-------------------------------------------------------------------------$
$
$
Allocated/Total GPU Memory In Cluster:  18/72 (25%)  $
""")


def test_the_example_in_the_originals_user_guide() -> None:
    names = "cn-shanghai.i-uf61h64dz1tmlob9hmtb", "cn-shanghai.i-uf61h64dz1tmlob9hmtc"
    nodes = [original_node(names[0], "192.168.0.71", memory=15, count=1), original_node(names[1], "192.168.0.70", memory=15, count=1)]
    pods = [pod("a", names[0], gpu=0, mem=6), pod("b", names[1], gpu=0, mem=3)]
    assert summary(read_usage(nodes, pods).nodes) == golden("""
NAME                                IPADDRESS     GPU0(Allocated/Total)  GPU Memory(GiB)$
cn-shanghai.i-uf61h64dz1tmlob9hmtb  192.168.0.71  6/15                   6/15$
cn-shanghai.i-uf61h64dz1tmlob9hmtc  192.168.0.70  3/15                   3/15$
------------------------------------------------------------------------------$
Allocated/Total GPU Memory In Cluster:$
9/30 (30%)  $
""")


def test_a_pod_without_a_known_gpu_and_a_node_with_fewer_gpus() -> None:
    nodes = [node("a", "10.0.0.1", 8, 8), node("b", "10.0.0.2", 4)]
    pods = [pod("known", "a", gpu=1, mem=2), pod("unknown", "a", mem=3), pod("other", "b", gpu=0, mem=1)]
    assert summary(read_usage(nodes, pods).nodes) == golden("""
NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)$
a     10.0.0.1   0/8                    2/8                    3                   5/16$
b     10.0.0.2   1/4                    0/0                                        1/4$
----------------------------------------------$
Allocated/Total GPU Memory In Cluster:$
6/20 (30%)  $
""")
    assert details(read_usage(nodes, pods).nodes) == golden("""
$
NAME:       a$
IPADDRESS:  10.0.0.1$
$
NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  $
known        default    0                2                0                   $
unknown      default    0                0                3                   $
Allocated :  5 (31%)    $
Total :      16         $
------------------------------------------------------$
$
NAME:       b$
IPADDRESS:  10.0.0.2$
$
NAME         NAMESPACE  GPU0(Allocated)  $
other        default    1                $
Allocated :  1 (25%)    $
Total :      4          $
------------------------------------------------------$
$
$
Allocated/Total GPU Memory In Cluster:  6/20 (30%)  $
""")


def test_no_node_at_all() -> None:
    assert summary([]) == golden("""
NAME  IPADDRESS  GPU Memory(GiB)$
$
Allocated/Total GPU Memory In Cluster:$
0/0 (0%)  $
""")


def header(text: str) -> str:
    return text.splitlines()[0].split("  ")[-1]


def test_the_unit_in_the_header() -> None:
    in_mib = node("m", "10.0.0.1", gpus=type(inventory(1))(UNITS["64MiB"], inventory(8).gpus))
    assert header(summary(read_usage([in_mib], []).nodes)) == "GPU Memory(64MiB)"
    assert header(summary(read_usage([in_mib, node("g", "10.0.0.2", 8)], []).nodes)) == "GPU Memory(64MiB,GiB)"
    # The original's nodes do not say: it goes by the size of a GPU.
    assert header(summary(read_usage([original_node("o", "10.0.0.3", memory=30218, count=2)], []).nodes)) == "GPU Memory(MiB)"
    assert header(summary(read_usage([original_node("o", "10.0.0.3", memory=200, count=2)], []).nodes)) == "GPU Memory(GiB)"


def test_a_share_is_cut_to_whole_per_cents() -> None:
    assert "1/3 (33%)" in summary(read_usage([node("a", "10.0.0.1", 3)], [pod("p", "a", gpu=0, mem=1)]).nodes)
    assert "2/3 (66%)" in summary(read_usage([node("a", "10.0.0.1", 3)], [pod("p", "a", gpu=0, mem=2)]).nodes)
