# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of the two READMEs, and of the pages about status and modes, that say what was proven, where it installs, what it costs.

They come from saved results, presets and the table of modes. A part of a README is a function of the language, "en" or "zh", and both
give the same names, numbers and links.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import policies
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import reasons

import address
import modes
import proof
from gpushare_lab.versions import version
from markdown_parts import item, table

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
_SUPPORT, _MODES = "docs/start/support.md", "docs/start/modes.md"
_FOOTPRINT = "docs/operate/footprint.md"
_PROOF, _BENCHMARKS = "docs/project/gpu-proof.md", "docs/project/benchmarks/README.md"
#: Of a line of Markdown.
_COLUMNS: Final = 120
#: What no report of a real GPU has, and how it was tried.
_NOT_REAL: Final = (("MPS inside pods", "**simulated**"), ("evictions", "**tested**"), ("MIG", "**simulated**"))
#: The release of Kubernetes with which every suite ran before the lab's, as in docs/start/support.md.
_FORMER: Final = "1.36"
#: Of a cell: as the one to the left of it.
_THE_SAME: Final = "the same"


def status(language: str) -> str:
    """Where the release is, and what ran on what."""
    at = address.repository()
    published = not address.rejected(at)
    gpu, one = proof.gpu_of_one_node(), f"{_PROOF}#a-cluster-of-one-node"
    gpus = sorted({name for claim in _PARTS for name in proof.proven_on(claim)})
    drivers = sorted({report.driver for report in proof.reports()})
    (by_hand,) = map(modes.maker, modes.run_by_hand())
    if language == ZH:
        get = f"在[这里]({at}/releases)" if published else "尚未发布，请克隆本仓库"
        said = [
            f"**模拟 GPU**：{_DISTRIBUTION} 上的 kubeadm，Kubernetes {_FORMER} 和 {_minor(version('kubernetes'))}，两种方式都运行过；"
            f"{by_hand} 运行过一次。",
            f"**真实 GPU**：以服务方式在一个节点上运行过一次，节点在带[一块真实 {gpu}]({one}) 的机器上，由 Linux 命名空间构成，"
            f"工具包从源码构建。三个 Pod 共用它的 GPU，第四个等待。以 Pod 方式从未运行。",
            f"**从未运行**：[Ubuntu]({_SUPPORT}#distributions)、EKS、OpenShift、kubespray，{' 和 '.join(gpus)} 以外的 GPU，"
            f"{'、'.join(drivers)} 以外的驱动，以及在早于 {_FORMER} 的 Kubernetes 上的完整安装。"
            f"[全部运行记录]({_STATUS}#what-ran-where)",
        ]
        ways = (
            "gpushare 可作为主机上的 **systemd 服务**运行（用 Ansible，kubeadm 集群），"
            "也可作为 **Pod** 运行，带第二个调度器（用 Helm，也可用于其他集群）。"
        )
        return f"{ways}\n\n**0.1 版{get}。目前没有已知用户**。\n\n" + "\n".join(f"- {one}" for one in said)
    get = f"is [here]({at}/releases)" if published else "is not published: clone this repository"
    said = [
        f"**On simulated GPUs:** kubeadm on {_DISTRIBUTION}, with Kubernetes {_FORMER} and {_minor(version('kubernetes'))}, both ways. "
        f"{by_hand}, once.",
        # On one line, for those who search the page.
        f"**On a real GPU:** as services, once: one node, made of Linux namespaces on a machine with [a\0real\0{gpu}]({one}), with a "
        "toolkit built from source. Three pods shared its GPU, a fourth waited. As pods, never.",
        f"**Never run:** [Ubuntu]({_SUPPORT}#distributions), EKS, OpenShift, kubespray, any other GPU than "
        f"{_list(gpus).replace('and', 'or')}, any other driver than {_list(drivers)}, a whole installation on "
        f"Kubernetes before {_FORMER}. [All runs]({_STATUS}#what-ran-where)",
    ]
    ways = "It runs as **systemd services** (Ansible, kubeadm) or as **pods** with a second scheduler (Helm, also elsewhere)."
    return f"{ways}\n\n**Release 0.1 {get}. No user is known.**\n\n{_items(said)}"


def _items(texts: Sequence[str]) -> str:
    """A list. No line breaks at a space that is written as \0, or before a percent sign, on a forge's page as well."""
    return "\n".join(item(text.replace(" %", "\u00a0%")) for text in texts).replace("\0", " ")


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


def _clusters(language: str) -> str:
    """Each kind of cluster: from which Kubernetes on, the way in, what it has run on, what restarts."""
    gpu = proof.gpu_of_one_node()
    (by_hand,) = map(modes.maker, modes.run_by_hand())
    services, pods = reasons.OLDEST_IN_WORDS.split()[0], modes.dotted(reasons.OLDEST_WITH_POLICIES)
    eks, openshift = modes.oldest_of("eks"), modes.oldest_of("openshift")
    others = [name for name in modes.makers() if name not in ("EKS", "OpenShift")]
    ways = ("#ansible", "#helm", "docs/operate/eks.md", "docs/operate/openshift.md", _OTHERS)
    kubespray = "docs/operate/coexist.md#kubespray"
    releases = (_FORMER, _minor(version("kubernetes")))
    if language == ZH:
        tested = f"模拟 GPU（{' 和 '.join(releases)}）"
        how = ("服务，用 Ansible", "Pod，用 Helm", "Pod，见专页", "Pod，见专页", "Pod，用预设")
        return table(
            ["你的集群", "安装方式", "运行过的环境", "什么会重启"],
            [
                [
                    f"kubeadm {services}+，可用 root 身份 ssh",
                    _link(how[0], ways[0]),
                    f"{_DISTRIBUTION}：{tested}，一个 {gpu} 节点",
                    "kube-scheduler，可能还有容器运行时；容器继续运行",
                ],
                [_link("kubespray", kubespray), "同上；每次运行 kubespray 后再运行一次 `site`", "**从未**", "同上"],
                [f"kubeadm {pods}+，通过 API", _link(how[1], ways[1]), tested, "无"],
                [f"EKS {eks}+，Auto Mode 除外", f"{_link(how[2], ways[2])}；Karpenter 需 alpha 功能", "**从未**", "GPU 节点要新建；其余无"],
                [
                    f"OpenShift {openshift}+；**整个集群失去 `nvidia.com/gpu`**",
                    _link(how[3], ways[3]),
                    "**从未**",
                    "GPU Operator 的工具包 Pod，可能还有 CRI-O",
                ],
                ["、".join(others), _link(how[4], ways[4]), f"{by_hand} 一次，其余**从未**", f"无；{by_hand} 上是节点的服务"],
            ],
        )
    tested = f"simulated GPUs ({_list(releases)})"
    how = ("services, by Ansible", "pods, by Helm", "pods, own page", "pods, own page", "pods, by preset")
    return table(
        ["your cluster", "how", "ran on", "what restarts"],
        [
            [
                f"kubeadm {services}+, root by ssh",
                _link(how[0], ways[0]),
                f"{_DISTRIBUTION}: {tested}, one {gpu} node",
                "kube-scheduler, perhaps the container runtime; containers continue",
            ],
            [_link("kubespray", kubespray), "as above; run `site` again after each run of kubespray", "**never**", "the same"],
            [f"kubeadm {pods}+, by the API", _link(how[1], ways[1]), tested, "nothing"],
            [
                f"EKS {eks}+, not Auto Mode",
                f"{_link(how[2], ways[2])}; Karpenter by an alpha gate",
                "**never**",
                "GPU nodes are replaced; nothing else",
            ],
            [
                f"OpenShift {openshift}+; **all of it loses `nvidia.com/gpu`**",
                _link(how[3], ways[3]),
                "**never**",
                "the GPU Operator's toolkit pods, perhaps CRI-O",
            ],
            [", ".join(others), _link(how[4], ways[4]), f"{by_hand} once, others **never**", f"nothing; on {by_hand} the node's service"],
        ],
    )


def _link(words: str, target: str) -> str:
    return f"[{words}]({target})"


def install(language: str) -> str:
    """The kinds of clusters, and the pages for what else a cluster may have."""
    dra = f"{modes.DRA}#install"
    nvidia, operator = "docs/operate/migrate.md", "docs/operate/gpu-operator.md"
    if language == ZH:
        return (
            f"{_clusters(ZH)}\n\n"
            "请先自行结束占用 `nvidia.com/gpu` 的 Pod：gpushare 不停止任何运行中的容器。"
            f"如果你已有以下之一，安装前先读它的页面：[NVIDIA 的插件或 time-slicing]({nvidia})、[GPU Operator]({operator})。"
            f"从 Kubernetes {modes.OLDEST_WITH_DRA} 起，用 [DRA]({dra}) 不需要第二个调度器，但更慢，占用的 GPU 也更多。"
            f"[服务还是 Pod]({_MODES})比较两种方式。"
        )
    text = (
        "First end the pods with `nvidia.com/gpu` yourself: gpushare stops no running container. If you have one of these, read its page: "
        f"[NVIDIA's plugin or time-slicing]({nvidia}), [GPU Operator]({operator}). From Kubernetes {modes.OLDEST_WITH_DRA} on, "
        f"[DRA]({dra}) needs no second scheduler, but is slower and uses more GPUs. [Services or pods]({_MODES}) compares both ways."
    )
    return f"{_clusters(EN)}\n\n{textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)}"


def _costs() -> list[tuple[str, str, str]]:
    """What it costs and what can go wrong: question, services of hosts, pods. A cell says it whole: pages have one of the two."""
    settings, removed, ports = f"{_GUIDE}#nvidias-runtime", "docs/operate/uninstall.md", _FOOTPRINT
    reboot, second = "docs/operate/failures.md#as-pods", f"{_GUIDE}#limits-of-a-second-scheduler"
    variable, most, older = "`NVIDIA_VISIBLE_DEVICES=all`", policies.FEW, modes.NAMES_THE_SCHEDULER
    extender, plugin = proof.saved("scheduling-5000-sampled")["startup"]["resident_mib"], proof.most_memory_of_plugin()
    visible, rights = "docs/operate/visibility.md#what-each-strategy-stops", "docs/reference/permissions.md"
    failures = "docs/operate/failures.md"
    return [
        (
            "scheduler",
            f"the cluster's own. Beside it an extender, gpushare's service that chooses the GPU. While it is down, pods with GPUs "
            f"[wait]({failures})",
            f"a second one, which may [bind and delete pods]({rights}) everywhere; without it pods with GPUs [wait]({failures}). "
            f"[Taint GPU nodes]({second}): both may promise the same CPU",
        ),
        (
            "admission policies",
            "restrict the daemons' rights",
            f"restrict the daemons' rights. They reject pods with `aliyun.com/*` that do not name the scheduler (before {older}), "
            f"and [any pod with more than {most} containers]({second})",
        ),
        (
            "a node reboots",
            f"its pods with GPUs end. They usually start again on their GPUs ([failures]({reboot}))",
            "its pods with GPUs **fail** (8 of 8 bare pods, simulated). Controllers make new ones",
        ),
        (
            f"{variable} without a request",
            f"gets no GPU, unless you hand GPUs over by the [variable]({visible})",
            f"**gets every GPU** where NVIDIA's runtime is the default or in a RuntimeClass, until you change [two settings]({settings})",
        ),
        ("the extender is down", f"pods with GPUs wait; those that run continue ([failures]({failures}))", _THE_SAME),
        (
            "memory",
            f"extender {extender:.0f} MiB (5000 nodes), each device plugin {plugin:.0f} MiB",
            f"two extenders with {extender:.0f} MiB each (5000 nodes), beside a kube-scheduler each; each device plugin {plugin:.0f} MiB. "
            f"[CPU, ports]({ports})",
        ),
        (
            "removal",
            f"`uninstall` stops while pods have shares, and takes its part out of your [files]({removed})",
            f"[`helm uninstall`]({removed}#helm) does not ask: pods with shares continue, but a container that ends **cannot start again**",
        ),
    ]


def costs() -> str:
    """The costs of services of hosts and of pods, where they differ."""
    return table(["", "as services", "as pods"], [row for row in _costs() if row[2] != _THE_SAME])


def costs_of_pods() -> str:
    """The same of pods alone, for the pages of clusters that have no other mode."""
    return table(
        ["", "what it costs, and what can go wrong"], [(what, services if pods == _THE_SAME else pods) for what, services, pods in _costs()]
    )


def limits(language: str) -> str:
    """What happens to a pod that takes more than its share, by the node."""
    asked = proof.proven_on("eviction of a pod that uses more")
    if language == ZH:
        return table(
            ["节点", "超用显存的 Pod", "试过的环境"],
            [
                ["驱动早于 615", "继续运行，并收到告警 Event；可设置为驱逐（DRA 除外）", f"Event：{'、'.join(asked)}；驱逐：模拟 GPU"],
                ["驱动 615 或 620，服务方式", "下一次分配失败", _tried("limit by the driver", ZH)],
                ["驱动 615 或 620，Pod 方式", "与早于 615 时相同，除非设置 `isolation: driver`", _tried("limit by the driver", ZH)],
                ["MPS，服务方式", "该进程的下一次分配失败", f"{_tried('limit by MPS', ZH)}，在 Pod 之外"],
            ],
        )
    return table(
        ["nodes", "a pod that takes too much", "tried on"],
        [
            [
                "any driver before 615",
                "continues, and gets a warning Event; evicted if you set it (not by DRA)",
                f"Event: {', '.join(asked)}; eviction: simulated GPUs",
            ],
            ["driver 615 or 620, as services", "its next allocation fails", _tried("limit by the driver", EN)],
            ["driver 615 or 620, as pods", "as before 615, unless you set `isolation: driver`", _tried("limit by the driver", EN)],
            ["MPS, as services", "the process's next allocation fails", f"{_tried('limit by MPS', EN)}, outside of pods"],
        ],
    )


def _tried(claim: str, language: str) -> str:
    """The GPUs on which a limit was measured."""
    zh = language == ZH
    return ("、" if zh else ", ").join(proof.proven_on(claim)) or ("模拟驱动" if zh else "a simulated driver")


def figures(language: str) -> str:
    """Figures with the targets that some of them miss."""
    churn, rates = proof.saved("churn"), [proof.saved(f"scheduling-{name}") for name in ("500", "5000-sampled")]
    report, original = proof.reports()[0], churn["original"]["wrong_gpus"]["another"]
    full, small = ([f"{one:.2f}" for one in report.together(kind)] for kind in ("matrix-product", "transformer"))
    nodes, targets = [str(one["nodes"]) for one in rates], [f"{100 * one['target_ratio']:.0f} %" for one in rates]
    reached = [f"{100 * one['ratio']:.0f} %" for one in rates]
    rate, alone = ([f"{proof.rate(one, extender=ours):.0f}" for one in rates] for ours in (True, False))
    goals = [judged(target, one["ratio"] < one["target_ratio"], language) for target, one in zip(targets, rates, strict=True)]
    if language == ZH:
        said = [
            f"**分错 GPU**：模拟 GPU 上的 {churn['pods']} 个随机 Pod，{churn['here']['wrong_gpus']} 次。用阿里云 gpushare 的匹配方式重放，"
            f"{original} 个拿到另一块 GPU。",
            f"**调度**：{nodes[0]} 个节点时每秒 {rate[0]} 个 Pod，是没有 gpushare 时 {alone[0]} 个的 {reached[0]}（目标 {goals[0]}）。"
            f"{nodes[1]} 个节点（抽样）时为 {reached[1]}（目标 {goals[1]}）。",
            f"**四个程序共用一块 {report.gpu}**：各自占满 GPU 时，合计完成单独一个的 {full[0]} 倍；都是小程序时为 {small[0]} 倍。"
            f"用 MPS 时为 {full[1]} 倍和 {small[1]} 倍。[全部数字]({_BENCHMARKS})",
        ]
        return "\n".join("- " + one.replace(" %", "\u00a0%") for one in said)
    said = [
        f"**Wrong GPUs:** {churn['here']['wrong_gpus']} for {churn['pods']} random pods on simulated GPUs. The method of "
        f"Alibaba's gpushare, replayed on them, chose another GPU {original} times.",
        f"**Scheduling:** {rate[0]} pods per second at {nodes[0]} nodes in a lab, {reached[0]} of the {alone[0]} without gpushare "
        f"(target {goals[0]}). At {nodes[1]} nodes {reached[1]} (target {goals[1]}).",
        f"**Four programs on one {report.gpu}** together do {full[0]} times the work of one alone if each fills the GPU, and "
        f"{small[0]} times if they are small. With MPS: {full[1]} and {small[1]}. [All\0figures]({_BENCHMARKS})",
    ]
    return _items(said)


def judged(target: str, missed: bool, language: str = EN) -> str:
    """A target, and that it was missed."""
    return target + (" **未达到**" if language == ZH else ", **missed**") * missed


#: Parts of a README by their names.
PARTS: Final = {"status": status, "install": install, "limits": limits, "figures": figures}
