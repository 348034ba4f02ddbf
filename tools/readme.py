# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of the two READMEs that say what was proven and where it installs: from saved results, presets and the table of modes.

Each part is a function of the language, "en" or "zh", and both give the same names, numbers and links.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import address
import modes
import proof
from gpushare_lab.versions import version
from markdown_parts import item, table

EN, ZH = "en", "zh"
#: Claim to the part of the product, in both languages.
_PARTS: Final = {
    "right GPU": ("device plugin", "device plugin"),
    "device strategy cdi": ("CDI specs", "CDI 规范文件"),
    "limit by MPS": ("limits by MPS", "MPS 显存限制"),
    "memory by pod": ("memory by pod", "按 Pod 统计显存"),
    "health": ("health checks", "健康检查"),
    "limit by the driver": ("limits by the driver", "由驱动实施的显存限制"),
}


def status(language: str) -> str:
    """What ran on a real GPU, and what on simulated ones; and where the releases are."""
    at = address.repository()
    published = not address.rejected(at)
    get = (
        (f"[releases]({at}/releases)", f"[发布版本]({at}/releases)")
        if published
        else ("not published yet; clone the repository", "尚未发布，请克隆代码仓库使用")
    )
    gpus = sorted({gpu for claim in _PARTS for gpu in proof.proven_on(claim)})
    known = {part: proof.proven_on(claim) == gpus for claim, parts in _PARTS.items() for part in [parts[language == ZH]]}
    ran, missing = [part for part, proven in known.items() if proven], [part for part, proven in known.items() if not proven]
    gpu, node, others = proof.gpu_of_one_node(), "docs/project/gpu-proof.md#a-cluster-of-one-node", "docs/operate/clusters-of-others.md"
    minor, support, roadmap = ".".join(version("kubernetes").split(".")[:2]), "docs/start/support.md", "docs/project/status.md"
    if language == ZH:
        lines = [
            f"- **0.1**：{get[1]}。[项目状态与路线图]({roadmap})",
            f"- **真实 GPU**：在一台带 {gpu} 的机器上，一个节点完成了安装、由多个 Pod 共享、再到卸载（[报告]({node})）。"
            f"{'、'.join(ran)}已在 {' 和 '.join(gpus)} 上[测得](docs/project/gpu-proof.md#what-has-run)（不经过 Kubernetes）。",
            f"- **模拟 GPU**：多节点，以服务方式和 Pod 方式，Kubernetes {minor}（[测试过的版本]({support})）。",
            f"- **尚未运行**：真实 GPU 上{'、'.join(missing)}；EKS 等的[预设]({others})。",
        ]
        return "\n".join(lines)
    items = (
        f"**0.1**: {get[0]}. [Status and roadmap]({roadmap})",
        f"**Real GPU**: one node with a real {gpu} was installed, shared by three pods at a time, and uninstalled ([report]({node})). "
        f"{_list(ran)[:1].upper()}{_list(ran)[1:]} were [measured](docs/project/gpu-proof.md#what-has-run) on "
        f"{_list([f'an {one}' for one in gpus])}, without Kubernetes.",
        f"**Lab with simulated GPUs**: several nodes, as services and as pods, Kubernetes {minor} ([versions]({support})).",
        f"**Not run**: {_list(missing)} on a real GPU; the [presets]({others}) for EKS and others.",
    )
    return "\n".join(map(item, items))


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def install(language: str) -> str:
    """Where it installs, how, and how far that was tried."""
    gpu = proof.gpu_of_one_node()
    by_hand = ", ".join(modes.maker(name) for name in modes.run_by_hand())
    rest = [name for name in modes.makers() if name not in by_hand]
    start, guide, others = "docs/start/quickstart.md", "docs/operate/kubernetes.md", "docs/operate/clusters-of-others.md"
    site = "`ansible-playbook -i inventory gpushare.kubernetes.site`"
    if language == ZH:
        return table(
            ["集群", "安装方式", "状态"],
            [
                ["自己的机器，kubeadm", f"Ansible：{site}，[快速入门]({start})", f"已测试；单节点在真实的 {gpu} 上"],
                ["kubeadm，通过 API", f"[Helm、清单或 playbook]({guide}#install)，镜像由你构建", "已测试，GPU 为模拟"],
                [by_hand, f"同一个 chart，加上[预设]({others})", "手动运行过一次，GPU 为模拟"],
                [
                    "、".join(rest),
                    f"同上：从头到尾的步骤见 [EKS]({others}#eks) 和 [OpenShift]({others}#openshift)",
                    "按官方资料编写，尚未运行：欢迎第一个尝试",
                ],
            ],
        )
    return table(
        ["cluster", "how", "state"],
        [
            ["your own machines, by kubeadm", f"Ansible: {site}, [quick start]({start})", f"tested; one node with a real {gpu}"],
            [
                "kubeadm, through the API",
                f"[Helm, a manifest or a playbook]({guide}#install), with an image that you build",
                "tested on simulated GPUs",
            ],
            [by_hand, f"the same chart, with a [preset]({others})", "run once by hand, on simulated GPUs"],
            [
                ", ".join(rest),
                f"the same: [EKS]({others}#eks) and [OpenShift]({others}#openshift) from top to bottom",
                "written from their documentation, not yet run: be the first",
            ],
        ],
    )


def limits(language: str) -> str:
    """What stops a pod that takes more than its share, by the node."""
    if language == ZH:
        return table(
            ["节点", "申请超过份额的 Pod，以 Ansible 服务安装", "以 Pod（Helm）安装"],
            [
                [
                    "驱动 620（长期支持）或 615，cgroup v2",
                    f"**显存不足**（{_known('limit by the driver', ZH)}）",
                    "设置 `isolation: driver` 后同左，需要 `CAP_SYS_ADMIN`，OpenShift 上不可用",
                ],
                [
                    "MPS（需自行开启），按进程",
                    f"**显存不足**（{_known('limit by MPS', ZH)}，由 Pod 之外的程序测得），除非容器自行改动 MPS",
                    "不支持",
                ],
                ["其他节点，即驱动 580 的默认情况", "*不会被阻止*：收到告警 Event；可设置为驱逐", "同左"],
            ],
        )
    return table(
        ["node", "a pod that allocates more than its share, as services (Ansible)", "as pods (Helm)"],
        [
            [
                "NVIDIA's driver 620 (long-term) or 615, cgroup v2",
                f"gets **out of memory** ({_known('limit by the driver', EN)})",
                "the same with `isolation: driver`, which needs `CAP_SYS_ADMIN`; not on OpenShift",
            ],
            [
                "MPS, where you switch it on, each process",
                f"gets **out of memory** ({_known('limit by MPS', EN)}, by programs outside of pods), unless its container "
                "tampers with MPS",
                "not available",
            ],
            [
                "any other, so with driver 580 by default",
                "is *not stopped*: it gets a warning Event, and you can have it evicted",
                "the same",
            ],
        ],
    )


def _known(claim: str, language: str) -> str:
    if language == ZH:
        return proof.words(claim, "已在 ", "目前仅在模拟驱动上验证", " 和 ") + (" 上测得" if proof.proven_on(claim) else "")
    return proof.words(claim)


def figures(language: str) -> str:
    """Four figures, with the target that one of them misses."""
    churn, plugin, rate = proof.saved("churn"), proof.saved("kubectl"), proof.saved("scheduling-500")
    (placed,) = (
        one["in_use"]
        for one in proof.saved("placement")["figures"]
        if (one["part"], one["trace"], one["policy"], one["load"]) == ("filled", "default", "binpack", 100)
    )
    missed = rate["ratio"] < rate["target_ratio"]
    cpu = max(one["cpu_seconds"] for one in plugin["results"])
    wrong, over = sum(churn["original"]["wrong_gpus"].values()), churn["original"]["over_booked_gpus"]
    here = churn["here"]
    if language == ZH:
        return "\n".join(
            (
                f"- 模拟 GPU 上随机创建的 {churn['pods']} 个 Pod 中，拿错 GPU 的有 {here['wrong_gpus']} 个，超分的 GPU 有 "
                f"{here['over_booked']} 块；原版的算法处理同一批 Pod，会拿错 {wrong} 次，超分 {over} 块 GPU。",
                f"- 公开 trace 上，Pod 申请的总量达到全部 GPU 时，{placed:.1f} % 的 GPU 得到使用。",
                f"- 500 个节点时，扩展器把 kube-scheduler 的绑定速率降到 {100 * rate['ratio']:.0f} %"
                f"（目标 {100 * rate['target_ratio']:.0f} %{'，**未达到**' if missed else ''}）。",
                f"- {plugin['nodes']} 个节点、{plugin['pods']:,} 个 Pod 时，每条命令最多占用 {cpu:.1f} s CPU 时间"
                f"（目标 {plugin['target_cpu_seconds']:.0f} s）。",
            )
        )
    items = (
        f"Of {churn['pods']} random pods on simulated GPUs, {here['wrong_gpus']} got a wrong GPU and {here['over_booked']} GPUs were "
        f"over-booked. The original's algorithm puts {wrong} of the same pods on a wrong GPU, and over-books {over} GPUs.",
        f"A public trace of pods, replayed until they ask for as much as there is: {placed:.1f} % of the GPUs are in use (simulation).",
        f"With 500 nodes the extender cuts kube-scheduler's rate of binds to {100 * rate['ratio']:.0f} % (target "
        f"{100 * rate['target_ratio']:.0f} %{', **missed**' if missed else ''}).",
        f"With {plugin['nodes']} nodes and {plugin['pods']:,} pods, each command takes at most {cpu:.1f} s of CPU (target "
        f"{plugin['target_cpu_seconds']:.0f} s).",
    )
    return "\n".join(map(item, items))


#: By the name of the part.
PARTS: Final = {"status": status, "install": install, "limits": limits, "figures": figures}
