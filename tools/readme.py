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
#: The one on which whole installations ran.
_DISTRIBUTION: Final = "Debian 12"
_MODELS: Final = "docs/start/gpus.md"
#: What no report of a real GPU has.
_NOT_REAL: Final = ("MPS inside pods", "evictions", "MIG")
#: The release of Kubernetes with which every suite ran before the lab's, as in docs/start/support.md.
_FORMER: Final = "1.36"


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
    minor, support, roadmap = _minor(version("kubernetes")), "docs/start/support.md", "docs/project/status.md"
    report = proof.one_node()
    there, driver = _minor(report["kubernetes"]), report["values"]["driver"].partition(".")[0]
    if language == ZH:
        lines = [
            f"- **0.1**：{get[1]}。[项目状态与路线图]({roadmap})",
            f"- **真实 GPU**：单节点集群（{gpu}，驱动 {driver}，Kubernetes {there}）以服务方式完成了安装、由三个 Pod 共享、再到卸载"
            f"（[报告]({node})）。该节点是运行在 namespace 中的 {_DISTRIBUTION}，toolkit 由源码构建。"
            f"{'、'.join(ran)}已在 {' 和 '.join(gpus)} 上[测得](docs/project/gpu-proof.md#what-has-run)（不经过 Kubernetes）。",
            f"- **模拟 GPU**：多节点，{_DISTRIBUTION}，Kubernetes {_FORMER} 和 {minor}；[其他版本按官方资料编写]({support})。",
            f"- **尚未在真实 GPU 上运行**：以 Pod 方式（Helm、DRA）安装、多个节点、{'、'.join((*missing, 'Pod 内的 MPS、驱逐、MIG'))}。"
            f"**完全没有运行过**：其他发行版、NVIDIA 自己的软件包、EKS 等的[预设]({others})。",
        ]
        return "\n".join(lines)
    items = (
        f"**0.1**: {get[0]}. [Status and roadmap]({roadmap})",
        f"**Real GPU**: a cluster of one node with a real {gpu}, driver {driver} and Kubernetes {there} was installed as services, "
        f"shared by three pods, and uninstalled ([report]({node})): a {_DISTRIBUTION} in namespaces, its toolkit built from source. "
        f"{_list(ran)[:1].upper()}{_list(ran)[1:]} were [measured](docs/project/gpu-proof.md#what-has-run) on "
        f"{_list([f'an {one}' for one in gpus])}, without Kubernetes.",
        f"**Lab**: simulated GPUs, several nodes, {_DISTRIBUTION}, Kubernetes {_FORMER}, {minor}; others [from docs]({support}).",
        f"**Not run on a real GPU**: {_list(('gpushare as pods (Helm, DRA)', 'several nodes', *missing, *_NOT_REAL))}. "
        f"**Not run at all**: other distributions, NVIDIA's own packages, the [presets]({others}) for EKS and others.",
    )
    return "\n".join(map(item, items))


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


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
            ["集群", "状态", "安装方式"],
            [
                [
                    "自己的机器，kubeadm",
                    f"仅在 {_DISTRIBUTION} 上测试：模拟 GPU，以及一个带真实 {gpu} 的节点",
                    f"Ansible：{site}，[快速入门]({start})",
                ],
                ["kubeadm，通过 API", "已测试，GPU 为模拟", f"[Helm、清单或 playbook]({guide}#install)"],
                [
                    "Kubernetes 1.37 及以上，以 Pod 方式，由集群自己的调度器（DRA）计数",
                    f"已测试，GPU 为模拟；[功能较少]({modes.DRA}#what-each-back-end-gives)",
                    f"[Helm 或清单]({modes.DRA}#install)",
                ],
                [by_hand, "运行过一次，GPU 为模拟", f"同一个 chart，加上[预设]({others})"],
                [
                    "、".join(rest),
                    "按官方资料编写，**尚未运行**",
                    "同上：[EKS](docs/operate/eks.md)、[OpenShift](docs/operate/openshift.md)",
                ],
            ],
        )
    return table(
        ["cluster", "state", "how"],
        [
            [
                "your own machines, by kubeadm",
                f"tested on {_DISTRIBUTION} only: simulated GPUs, and one node with a real {gpu}",
                f"Ansible: {site}, [quick start]({start})",
            ],
            ["kubeadm, through the API", "tested on simulated GPUs", f"[Helm, a manifest or a playbook]({guide}#install)"],
            [
                "Kubernetes 1.37, as pods, counted by the cluster's own scheduler (DRA)",
                f"tested on simulated GPUs; [fewer features]({modes.DRA}#what-each-back-end-gives)",
                f"[Helm or a manifest]({modes.DRA}#install)",
            ],
            [by_hand, "run once, on simulated GPUs", f"the same chart, with a [preset]({others})"],
            [
                ", ".join(rest),
                "written from their documentation, **not run**",
                "the same: [EKS](docs/operate/eks.md), [OpenShift](docs/operate/openshift.md)",
            ],
        ],
    )


def limits(language: str) -> str:
    """What stops a pod that takes more than its share, by the node."""
    if language == ZH:
        return table(
            ["节点", "以服务安装（Ansible）", "以 Pod 安装（Helm）"],
            [
                [
                    "驱动 620 或 615",
                    f"下一次分配**失败**（{_known('limit by the driver', ZH)}）；`cudaMallocManaged` 的显存不受限制",
                    "设置 `isolation: driver` 后同左；OpenShift 上不可用",
                ],
                [
                    "MPS（自行开启）",
                    f"每个进程（而非 Pod）的下一次分配**失败**（{_known('limit by MPS', ZH)}，由 Pod 之外的程序测得）。"
                    "同一时间只有一个用户（`runAsUser`）的 Pod 能计算；一个致命错误会终止全部程序",
                    "不支持",
                ],
                [f"其他，如驱动 550、570、580、595：[A100、L40S、RTX 等]({_MODELS})", "**不会被阻止**：告警 Event，或驱逐", "同左"],
            ],
        )
    return table(
        ["node", "as services (Ansible)", "as pods (Helm)"],
        [
            [
                "driver 620 or 615",
                f"its next allocation **fails** ({_known('limit by the driver', EN)}); memory by `cudaMallocManaged` is not stopped",
                "the same with `isolation: driver`; not on OpenShift",
            ],
            [
                "MPS, if you switch it on",
                f"the next allocation of each process, not of the pod, **fails** ({_known('limit by MPS', EN)}, by programs outside of "
                "pods). Pods of one user (`runAsUser`) at a time; a fatal fault of one ends all",
                "not available",
            ],
            [
                f"any other, as driver 550, 570, 580 or 595: [A100, L40S, RTX and others]({_MODELS})",
                "**not stopped**: a warning Event, or an eviction",
                "the same",
            ],
        ],
    )


def _known(claim: str, language: str) -> str:
    if language == ZH:
        return proof.words(claim, "已在", "目前仅在模拟驱动上验证", " 和 ") + (" 上测得" if proof.proven_on(claim) else "")
    return proof.words(claim)


def figures(language: str) -> str:
    """Four figures, with the target that one of them misses."""
    churn, rate = proof.saved("churn"), proof.saved("scheduling-500")
    placed = {
        (one["part"], one["policy"]): f"{one['in_use']:.1f}"
        for one in proof.saved("placement")["figures"]
        if (one["trace"], one["load"]) == ("default", 100)
    }
    ours, others = placed["filled", "binpack"], placed["anchor", "FGD"]
    beside, alone = (proof.rate(rate, extender=side) for side in (True, False))
    missed = rate["ratio"] < rate["target_ratio"]
    here, original = churn["here"], churn["original"]
    wrong = original["wrong_gpus"]
    report = proof.reports()[0]
    (large, large_mps), (small, small_mps) = (report.together(kind) for kind in ("matrix-product", "transformer"))
    if language == ZH:
        return "\n".join(
            (
                f"- 模拟 GPU 上随机创建的 {churn['pods']} 个 Pod 中，拿错 GPU 的有 {here['wrong_gpus']} 个，超分的 GPU 有 "
                f"{here['over_booked']} 块。用原版的匹配算法重放这些 Pod 的容器的 {original['admissions']} 次准入："
                f"{wrong['another']} 次得到另一块 GPU，{wrong['none']} 次没有得到，"
                f"{wrong['too_few']} 次多 GPU 的 Pod（它不支持）数量不足。",
                f"- 公开 trace 上，Pod 申请的总量达到全部 GPU 时，{ours} % 的 GPU 得到使用（模拟）。FGD 在其作者的模型中为 {others} %。",
                f"- 500 个节点时，使用扩展器的 kube-scheduler 平均每秒绑定 {beside:.0f} 个 Pod，不用时 {alone:.0f} 个。"
                f"相邻两轮之比的中位数是 {100 * rate['ratio']:.0f} %"
                f"（目标 {100 * rate['target_ratio']:.0f} %{'，**未达到**' if missed else ''}）。",
                f"- **GPU 的计算时间不作划分。**在 {report.gpu} 上，四个各自占满 GPU 的程序合计完成一个程序的 {large:.2f} 倍"
                f"（MPS 下 {large_mps:.2f}），四个小程序为 {small:.1f} 倍（{small_mps:.1f}）。",
            )
        )
    items = (
        f"{churn['pods']} random pods on simulated GPUs: {here['wrong_gpus']} wrong GPUs, {here['over_booked']} over-booked. The "
        f"original's matching, replayed on their {original['admissions']} admissions: another GPU {wrong['another']} "
        f"times, none {wrong['none']} times, and {wrong['too_few']} times too few of several GPUs, which it does not support.",
        f"A public trace, replayed until its pods ask for all GPUs: {ours} % in use (simulation); another model, FGD's: {others} %.",
        f"With 500 nodes {beside:.0f} pods are bound a second, {alone:.0f} without it: as median of single rounds "
        f"{100 * rate['ratio']:.0f} % (target {100 * rate['target_ratio']:.0f} %{', **missed**' if missed else ''}).",
        f"**The GPU's time is not divided.** On an {report.gpu}, four programs that each fill the GPU do {large:.2f} of the work of one "
        f"({large_mps:.2f} with MPS), four small ones {small:.1f} times ({small_mps:.1f}).",
    )
    return "\n".join(map(item, items))


#: By the name of the part.
PARTS: Final = {"status": status, "install": install, "limits": limits, "figures": figures}
