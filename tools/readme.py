# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of the two READMEs, and of the page about the status, that say what was proven and where it installs.

They come from saved results, presets and the table of modes. A part of a README is a function of the language, "en" or "zh", and both
give the same names, numbers and links.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

import address
import modes
import proof
from gpushare_lab.versions import version
from markdown_parts import table

EN, ZH = "en", "zh"
#: Claims, and what they are parts of the product.
_PARTS: Final = {
    "right GPU": "device plugin",
    "device strategy cdi": "CDI specs",
    "limit by MPS": "limits by MPS of programs outside of pods",
    "memory by pod": "memory by pod",
    "health": "health checks",
    "limit by the driver": "limits by the driver",
}
#: The one on which whole installations ran.
_DISTRIBUTION: Final = "Debian 12"
_STATUS, _GUIDE, _OTHERS = "docs/project/status.md", "docs/operate/kubernetes.md", "docs/operate/clusters-of-others.md"
_SUPPORT, _MODELS, _PROOF = "docs/start/support.md", "docs/start/gpus.md", "docs/project/gpu-proof.md"
#: Of a line of Markdown.
_COLUMNS: Final = 120
#: What no report of a real GPU has, and how it was tried.
_NOT_REAL: Final = (("MPS inside pods", "**simulated**"), ("evictions", "**tested**"), ("MIG", "**simulated**"))
#: The release of Kubernetes with which every suite ran before the lab's, as in docs/start/support.md.
_FORMER: Final = "1.36"


def status(language: str) -> str:
    """Where the release is, and how far it has come on real GPUs."""
    at = address.repository()
    published = not address.rejected(at)
    gpu = proof.gpu_of_one_node()
    if language == ZH:
        get = f"发布版本在[这里]({at}/releases)" if published else "尚未发布，请克隆代码仓库使用"
        return (
            f"**0.1 版{get}**。在一个带真实 {gpu} 的节点上，它以服务方式完成了安装、由三个 Pod 共享、再到卸载。"
            f"多节点集群，以及以 Pod 方式安装，至今只用模拟 GPU 运行过：[哪些在哪里运行过]({_STATUS})。"
        )
    get = f"**Release 0.1 is [here]({at}/releases).**" if published else "**Release 0.1 is not published yet: clone the repository.**"
    return textwrap.fill(
        f"{get} On one node with a real {gpu} it was installed as services, "
        f"shared by three pods, and removed. Clusters of several nodes, and gpushare as pods, have run with simulated GPUs only: "
        f"[what ran where]({_STATUS}).",
        _COLUMNS,
        break_long_words=False,
        break_on_hyphens=False,
    )


def ran() -> str:
    """What ran on a real GPU, and what on simulated ones."""
    gpus = sorted({gpu for claim in _PARTS for gpu in proof.proven_on(claim)})
    real = [part for claim, part in _PARTS.items() if proof.proven_on(claim) == gpus]
    minor, one = _minor(version("kubernetes")), proof.one_node()
    driver, there = one["values"]["driver"].partition(".")[0], _minor(one["kubernetes"])
    node = f"[one node]({_PROOF}#a-cluster-of-one-node) with an {proof.gpu_of_one_node()}, driver {driver}, Kubernetes {there}"
    by_hand = ", ".join(modes.maker(name) for name in modes.run_by_hand())
    return table(
        ["", "real GPU", "simulated GPUs"],
        [
            ["services of hosts, from installation to removal", f"{node}, with a toolkit built from source", "**tested** on several nodes"],
            ["pods, by the extender or by DRA", "no", "**tested**"],
            [_list(real), f"{_list(gpus)}, [without Kubernetes]({_PROOF}#what-has-run)", "**tested**"],
            *([part, "no", "**simulated**"] for claim, part in _PARTS.items() if part not in real),
            *([part, "no", how] for part, how in _NOT_REAL),
            [f"Kubernetes other than {_FORMER} and {minor}", "no", f"[by version]({_SUPPORT}#kubernetes)"],
            [f"a whole installation on another distribution than {_DISTRIBUTION}, NVIDIA's own packages", "no", "no"],
            [f"[clusters of others]({_OTHERS}), such as EKS and OpenShift", "no", f"{by_hand} **by hand**, others not"],
        ],
    )


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def install(language: str) -> str:
    """Where it installs, how, and what that has run on."""
    gpu = proof.gpu_of_one_node()
    by_hand = ", ".join(modes.maker(name) for name in modes.run_by_hand())
    rest = [name for name in modes.makers() if name not in by_hand]
    start, presets = "docs/start/quickstart.md", f"[preset]({_OTHERS})"
    eks, openshift, dra = "docs/operate/eks.md", "docs/operate/openshift.md", f"{modes.DRA}#install"
    fewer = f"{modes.DRA}#what-each-back-end-gives"
    if language == ZH:
        return table(
            ["集群", "安装方式", "运行过的环境"],
            [
                ["自己的机器，kubeadm", f"[Ansible]({start})，作为服务", f"模拟 GPU；**一个带真实 {gpu} 的节点**"],
                ["kubeadm，通过 API", f"[Helm、清单或 playbook]({_GUIDE}#install)，作为 Pod", "模拟 GPU"],
                [
                    f"Kubernetes {modes.OLDEST_WITH_DRA} 及以上，由集群自己的调度器计数（DRA）",
                    f"[Helm、清单或 playbook]({dra})",
                    f"模拟 GPU；[功能较少]({fewer})",
                ],
                [by_hand, f"同一个 chart，加上[预设]({_OTHERS})", "模拟 GPU，一次"],
                ["、".join(rest), f"同上：[EKS]({eks})、[OpenShift]({openshift})", "**尚未运行**，按官方资料编写"],
            ],
        )
    return table(
        ["cluster", "how", "has run on"],
        [
            ["kubeadm, your own machines", f"[Ansible]({start}), as services", f"simulated GPUs; **one node with a real {gpu}**"],
            ["kubeadm, through the API", f"[Helm, manifest or playbook]({_GUIDE}#install), as pods", "simulated GPUs"],
            [
                f"Kubernetes {modes.OLDEST_WITH_DRA}, whose own scheduler counts (DRA)",
                f"[Helm, manifest or playbook]({dra})",
                f"simulated GPUs; [fewer features]({fewer})",
            ],
            [by_hand, f"the same chart, with a {presets}", "simulated GPUs, once"],
            [", ".join(rest), f"the same: [EKS]({eks}), [OpenShift]({openshift})", "**nothing yet**: written from their documentation"],
        ],
    )


def limits(language: str) -> str:
    """What happens to a pod that takes more than its share, by the node."""
    if language == ZH:
        return table(
            ["节点", "超用显存的 Pod"],
            [
                [f"默认情况，驱动如 550、570、580、595：[A100、L40S、RTX 等]({_MODELS})", "**不会被阻止**：告警 Event；若你开启，则被驱逐"],
                [
                    "驱动 615 或 620",
                    f"下一次分配**失败**（{_known('limit by the driver', ZH)}），`cudaMallocManaged` 除外。以 Pod 安装时需设置 "
                    "`isolation: driver`，OpenShift 上不可用",
                ],
                [
                    "MPS 开启（仅限以服务安装）",
                    f"每个进程（而非 Pod）的下一次分配**失败**（{_known('limit by MPS', ZH)}，由 Pod 之外的程序测得）。"
                    "同一时间只有一个用户（`runAsUser`）的 Pod 能计算；一个致命错误会终止全部程序",
                ],
            ],
        )
    return table(
        ["node", "a pod that takes too much"],
        [
            [
                f"by default, with driver 550, 570, 580 or 595: [A100, L40S, RTX and others]({_MODELS})",
                "is **not stopped**: it gets a warning Event, and if you switch that on, an eviction",
            ],
            [
                "driver 615 or 620",
                f"its next allocation **fails** ({_known('limit by the driver', EN)}), except by `cudaMallocManaged`. As pods only with "
                "`isolation: driver`, and not on OpenShift",
            ],
            [
                "with MPS, only as services",
                f"the next allocation of each process, not of the pod, **fails** ({_known('limit by MPS', EN)}, by programs outside of "
                "pods). Pods of one user (`runAsUser`) compute at a time, and a fatal fault of one ends all",
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
    speed = f"{100 * rate['ratio']:.0f} %", f"{100 * rate['target_ratio']:.0f} %"
    if language == ZH:
        return table(
            ["", "结果"],
            [
                [
                    "是否拿对 GPU",
                    f"模拟 GPU 上随机创建的 {churn['pods']} 个 Pod 中，拿错 GPU 的有 {here['wrong_gpus']} 个，超分的 GPU 有 "
                    f"{here['over_booked']} 块。用原版的匹配算法重放它们的 {original['admissions']} 次准入："
                    f"{wrong['another']} 次得到另一块 GPU，{wrong['none']} 次没有得到；"
                    f"{wrong['too_few']} 次多 GPU 的 Pod（它不支持）数量不足",
                ],
                [
                    "GPU 使用率",
                    f"公开 trace 的 Pod 申请的总量达到全部 GPU 时，{ours} % 的 GPU 得到使用（模拟）。FGD 在其作者的模型中为 {others} %",
                ],
                [
                    "绑定速度",
                    f"500 个节点时每秒 {beside:.0f} 个 Pod，不用扩展器时 {alone:.0f} 个：{speed[0]}（各轮的中位数），目标 {speed[1]}"
                    f"{'，**未达到**' if missed else ''}",
                ],
                [
                    "计算时间",
                    f"**不作划分**。在 {report.gpu} 上，四个各自占满 GPU 的程序合计完成一个程序的 {large:.2f} 倍"
                    f"（MPS 下 {large_mps:.2f}），四个小程序为 {small:.1f} 倍（{small_mps:.1f}）",
                ],
            ],
        )
    return table(
        ["", "result"],
        [
            [
                "the right GPU",
                f"{churn['pods']} random pods on simulated GPUs: {here['wrong_gpus']} wrong GPUs, {here['over_booked']} over-booked. The "
                f"original's matching, replayed on their {original['admissions']} admissions: another GPU {wrong['another']} times, none "
                f"{wrong['none']} times, and {wrong['too_few']} times too few for a pod with several, which it does not support",
            ],
            [
                "GPUs in use",
                f"{ours} % of all, when the pods of a public trace ask for as many as there are (simulation). FGD, in its authors' model: "
                f"{others} %",
            ],
            [
                "pods bound a second",
                f"{beside:.0f} with 500 nodes, {alone:.0f} without the extender: {speed[0]}, as median of the rounds. Target: {speed[1]}"
                f"{', **missed**' if missed else ''}",
            ],
            [
                "the GPU's time",
                f"**is not divided**. On an {report.gpu}, four programs that each fill the GPU together do {large:.2f} of the work of one "
                f"({large_mps:.2f} with MPS). Four small ones do {small:.1f} times that of one ({small_mps:.1f} with MPS)",
            ],
        ],
    )


#: Parts of a README by their names.
PARTS: Final = {"status": status, "install": install, "limits": limits, "figures": figures}
