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

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import policies
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import reasons

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
    gpu, one = proof.gpu_of_one_node(), f"{_PROOF}#a-cluster-of-one-node"
    if language == ZH:
        get = f"发布版本在[这里]({at}/releases)" if published else "尚未发布：请用 `git clone` 取得本仓库"
        return (
            f"**0.1 版{get}。目前没有已知用户**。在一个带真实 {gpu} 的节点上，它以服务方式完成了安装、由三个 Pod 共享、再到卸载："
            f"[在那台机器的命名空间里]({one})，NVIDIA 的工具包由源代码构建。"
            f"多节点集群，以及以 Pod 方式安装，至今只用模拟 GPU 运行过：[哪些在哪里运行过]({_STATUS})。"
        )
    get = (
        f"**Release 0.1 is [here]({at}/releases). No user is known yet.**"
        if published
        else "**Release 0.1 is not published yet: take this repository by `git clone`. No user is known yet.**"
    )
    return textwrap.fill(
        f"{get} It was installed on one node with a real {gpu} as services, shared by three pods, and removed: "
        f"[in namespaces of its machine]({one}), with NVIDIA's toolkit built from source. Clusters of several nodes, and "
        f"gpushare as pods, have run with simulated GPUs only: [what ran where]({_STATUS}).",
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
    """Each kind of cluster: from which Kubernetes on, what to type, what restarts, and what it has run on."""
    gpu, zh = proof.gpu_of_one_node(), language == ZH
    by_hand = ", ".join(modes.maker(name) for name in modes.run_by_hand())
    services, pods, dra = reasons.OLDEST_IN_WORDS.split()[0], modes.dotted(reasons.OLDEST_WITH_POLICIES), modes.OLDEST_WITH_DRA
    own_pages = ("EKS", "OpenShift")
    k3s = ("k3s", "RKE2")
    rest = [name for name in modes.makers() if name not in (by_hand, *own_pages, *k3s)]
    site, preset = "`ansible-playbook -i inventory gpushare.kubernetes.site`", "`--values charts/gpushare/presets/{}.yaml`"
    start, operator = "docs/start/quickstart.md#4-install", "docs/operate/gpu-operator.md"
    as_pods = "`-e gpushare_deploy_mode=kubernetes`"
    by_site = f"{_OTHERS}#k3s-and-rke2-by-site"
    eks, openshift = "[EKS](docs/operate/eks.md)", "[OpenShift](docs/operate/openshift.md)"
    gives, installs = f"{modes.DRA}#what-each-back-end-gives", f"{modes.DRA}#install"
    simulated, none = ("模拟 GPU", "**尚未运行**") if zh else ("simulated GPUs", "**nothing yet**")
    nothing, not_run = ("无", f"可以，[尚未运行]({operator})") if zh else ("nothing", f"yes, [not run]({operator})")
    minor = modes.oldest_of
    if zh:
        return table(
            ["你的集群", "Kubernetes", "输入", "什么会重启", "GPU Operator 的驱动容器", "运行过的环境"],
            [
                [
                    "kubeadm，通过 ssh：[作为服务](docs/start/quickstart.md)",
                    f"{services} 起",
                    site,
                    f"kube-scheduler；配置有改动时还有容器运行时（[详情]({start})）",
                    "不可以",
                    f"{simulated}；真实的 {gpu} 一块",
                ],
                [
                    "kubeadm，通过 API：作为 Pod",
                    f"{pods} 起",
                    f"下面的[步骤](#helm)，或[清单、playbook]({_GUIDE}#install)",
                    nothing,
                    not_run,
                    simulated,
                ],
                [
                    f"同上，不要第二个调度器（[DRA]({installs})，[功能较少]({gives})）",
                    f"{dra} 起",
                    "清单或 playbook；同样的步骤加 `--set backend=dra` 尚未运行过",
                    nothing,
                    "未试",
                    simulated,
                ],
                [
                    "k3s、RKE2",
                    f"{minor('k3s')} 起",
                    f"同样的步骤，加 {preset.format('rke2')}；或 `site` 加 {as_pods}",
                    f"Helm：{nothing}。[`site`]({by_site})：节点的服务，一次",
                    "RKE2：可以，尚未运行",
                    none,
                ],
                [eks, f"{minor('eks')} 起", f"同样的步骤，加 {preset.format('eks')}", "无：新节点自带两项设置", "驱动在 AMI 里", none],
                [
                    f"{openshift} {minor('openshift')} 起",
                    f"{pods} 起",
                    f"同样的步骤，加 {preset.format('openshift')}",
                    "GPU Operator 的工具包 Pod；CRI-O 是否重启尚不清楚",
                    "可以，尚未运行",
                    none,
                ],
                [
                    by_hand,
                    f"{minor('k0s')} 起",
                    f"同样的步骤，加[预设]({_OTHERS}#k0s)",
                    "k0s，用于运行时的配置",
                    "未试",
                    f"{simulated}，一次",
                ],
                ["、".join(rest), f"{pods} 起", f"同样的步骤，加[预设]({_OTHERS})", nothing, "取决于集群", none],
            ],
        )
    return table(
        ["your cluster", "Kubernetes from", "you type", "what restarts", "GPU Operator's driver container", "has run on"],
        [
            [
                "**kubeadm, by ssh**: [as services](docs/start/quickstart.md)",
                services,
                site,
                f"kube-scheduler; the container runtime if its configuration changes ([quick start]({start}))",
                "no",
                f"{simulated}; **one {gpu}**",
            ],
            [
                "**kubeadm, by the API**: as pods",
                pods,
                f"the [steps](#helm) below, or [manifest, playbook]({_GUIDE}#install)",
                nothing,
                not_run,
                simulated,
            ],
            [
                f"**the same without a second scheduler** ([DRA]({installs}), [fewer features]({gives}))",
                dra,
                "manifest or playbook; these steps with `--set backend=dra` were not run",
                nothing,
                "not tried",
                simulated,
            ],
            [
                "**k3s, RKE2**",
                minor("k3s"),
                f"these steps with {preset.format('rke2')}; or `site` with {as_pods}",
                f"Helm: {nothing}. [`site`]({by_site}): the node's service, once",
                "RKE2: yes, not run",
                none,
            ],
            [
                f"**{eks}**",
                minor("eks"),
                f"these steps with {preset.format('eks')}",
                "nothing: new nodes have the two settings",
                "the AMI has the driver",
                none,
            ],
            [
                f"**{openshift}** from {minor('openshift')} on",
                pods,
                f"these steps with {preset.format('openshift')}",
                "the toolkit's pods of the GPU Operator; whether CRI-O does is not known",
                "yes, not run",
                none,
            ],
            [
                f"**{by_hand}**",
                minor("k0s"),
                f"these steps with a [preset]({_OTHERS}#k0s)",
                "k0s, for its runtime's configuration",
                "not tried",
                f"{simulated}, once",
            ],
            [f"**{', '.join(rest)}**", pods, f"these steps with a [preset]({_OTHERS})", nothing, "as the cluster has it", none],
        ],
    )


def _costs(language: str) -> list[tuple[str, str, str]]:
    """What it costs and what can go wrong: question, services of hosts, pods."""
    settings, removed = f"{_GUIDE}#nvidias-runtime", "docs/operate/uninstall.md"
    reboot, second, ports = "docs/operate/failures.md#as-pods", f"{_GUIDE}#limits-of-a-second-scheduler", "docs/operate/footprint.md"
    variable, most, older = "`NVIDIA_VISIBLE_DEVICES=all`", policies.FEW, modes.NAMES_THE_SCHEDULER
    extender, plugin = proof.saved("scheduling-5000-sampled")["startup"]["resident_mib"], proof.most_memory_of_plugin()
    visible = "docs/operate/visibility.md#what-each-strategy-stops"
    if language == ZH:
        return [
            (
                "调度器",
                "集群自己的，并排加一个扩展器",
                f"[第二个]({second})，可在整个集群绑定和删除 Pod。两个调度器可能把同一份 CPU 许诺两次：给 GPU 节点加污点",
            ),
            (
                "准入策略",
                "限制各守护进程的权限",
                f"同左；还会拒绝未写明该调度器的 GPU Pod（早于 {older}），以及容器超过 {most} 个的任何 Pod",
            ),
            ("节点重启", f"Pod 通常继续（[详情]({reboot})）", "**其 GPU Pod 失败**，由控制器重建（模拟：8 个中 8 个）"),
            (
                f"{variable} 而不申请",
                f"得不到 GPU，策略 `envvar` [除外]({visible})",
                f"NVIDIA 运行时为默认或在某个 RuntimeClass 中时**得到全部 GPU**，直到你改好[两项设置]({settings})",
            ),
            (
                "内存",
                f"扩展器 {extender:.0f} MiB（5000 个节点），device plugin {plugin:.0f} MiB",
                f"同左，两个扩展器各带一个 kube-scheduler。[CPU、端口]({ports})",
            ),
            (
                "卸载",
                f"`uninstall` 在 Pod 有份额时停止，并还原你的[文件]({removed})",
                f"[`helm uninstall`]({removed}#helm) **不会停止**：Pod 继续运行，但无法重启",
            ),
        ]
    return [
        (
            "scheduler",
            "the cluster's own, with an extender beside it",
            f"[a second one]({second}), which may bind and delete pods of the whole cluster. The two may promise the same CPU twice: taint "
            "the GPU nodes",
        ),
        (
            "admission policies",
            "restrict the daemons' rights",
            f"the same. They also reject a pod with GPUs that does not name the scheduler (before {older}), and any pod with more than "
            f"{most} containers",
        ),
        (
            "a node reboots",
            f"pods usually continue ([failures]({reboot}))",
            "**its pods with GPUs fail**, and controllers replace them (8 of 8, simulated)",
        ),
        (
            f"{variable} without a request",
            f"gets no GPU, [except]({visible}) by the strategy `envvar`",
            f"**gets every GPU** where NVIDIA's runtime is the default or in a RuntimeClass, until you change [two settings]({settings})",
        ),
        (
            "memory",
            f"extender {extender:.0f} MiB (5000 nodes), device plugin {plugin:.0f} MiB",
            f"the same, for two extenders with a kube-scheduler each. [CPU, ports]({ports})",
        ),
        (
            "removal",
            f"`uninstall` stops while pods have shares, and restores your [files]({removed})",
            f"[`helm uninstall`]({removed}#helm) **does not stop**: pods go on, but cannot restart",
        ),
    ]


def costs(language: str) -> str:
    """The costs of both modes, for the README."""
    return table(["", "作为服务", "作为 Pod"] if language == ZH else ["", "as services", "as pods"], _costs(language))


def costs_of_pods() -> str:
    """The same of pods alone, for the pages of clusters that have no other mode."""
    return table(["", "what it costs, and what can go wrong"], [(what, pods) for what, _, pods in _costs(EN)])


def limits(language: str) -> str:
    """What happens to a pod that takes more than its share, by the node."""
    if language == ZH:
        return table(
            ["节点", "超用显存的 Pod"],
            [
                [f"默认情况，任何[早于 615 的驱动]({_MODELS})", "**不会被阻止**：告警 Event；若你开启，则被驱逐"],
                [
                    "驱动 615 或 620",
                    f"下一次分配**失败**（{_known('limit by the driver', ZH)}），`cudaMallocManaged` 除外。以 Pod 安装时需设置 "
                    "`isolation: driver`，OpenShift 上不可用",
                ],
                [
                    "MPS 开启（仅限以服务安装）",
                    f"每个进程（而非 Pod）的下一次分配**失败**（{_known('limit by MPS', ZH)}，由 Pod 之外的程序测得）。"
                    "不同用户（`runAsUser`）的 Pod 轮流计算；一个程序的致命错误会终止该 GPU 上的全部程序",
                ],
            ],
        )
    return table(
        ["node", "a pod that takes too much"],
        [
            [
                f"by default, with any [driver before 615]({_MODELS})",
                "is **not stopped**: it gets a warning Event, and if you switch that on, an eviction",
            ],
            [
                "driver 615 or 620",
                f"its next allocation **fails** ({_known('limit by the driver', EN)}), except by `cudaMallocManaged`. As pods you set "
                "`isolation: driver` for that, which OpenShift does not allow",
            ],
            [
                "with MPS, only as services",
                f"the next allocation of each process, not of the pod, **fails** ({_known('limit by MPS', EN)}, by programs outside of "
                "pods). Pods of different users (`runAsUser`) take turns, and a fatal fault of one program ends all on the GPU",
            ],
        ],
    )


def _known(claim: str, language: str) -> str:
    if language == ZH:
        return proof.words(claim, "已在", "目前仅在模拟驱动上验证", " 和 ") + (" 上测得" if proof.proven_on(claim) else "")
    return proof.words(claim)


def figures(language: str) -> str:
    """Figures with the targets that some of them miss: one number a row."""
    churn, rates = proof.saved("churn"), [proof.saved(f"scheduling-{name}") for name in ("500", "5000-sampled")]
    placed = {
        (one["part"], one["policy"], one["trace"]): f"{one['in_use']:.1f} %"
        for one in proof.saved("placement")["figures"]
        if one["load"] == 100
    }
    traces = ("default", "gpushare100")
    here, original = churn["here"], churn["original"]
    wrong = sum(original["wrong_gpus"].values())
    report = proof.reports()[0]
    alone, with_mps = report.together("matrix-product")
    zh = language == ZH
    rows = [
        [
            f"拿错 GPU 的 Pod，共 {churn['pods']} 个随机 Pod（模拟 GPU）"
            if zh
            else f"wrong GPUs, of {churn['pods']} random pods on simulated GPUs",
            f"{here['wrong_gpus']}",
            f"原版的匹配算法，重放同样的 {original['admissions']} 次准入：{wrong}"
            if zh
            else f"the original's matching, replayed on the same {original['admissions']} admissions: {wrong}",
        ]
    ]
    for trace in traces:
        ours, others = placed["filled", "binpack", trace], placed["anchor", "FGD", trace]
        rows.append(
            [
                f"GPU 使用率，trace `{trace}`（模拟）" if zh else f"GPUs in use, trace `{trace}` (simulation)",
                ours,
                f"FGD 在其作者自己的模型中：{others}" if zh else f"FGD, in its authors' own model: {others}",
            ]
        )
    for one in rates:
        ratio, target = f"{100 * one['ratio']:.0f} %", f"{100 * one['target_ratio']:.0f} %"
        missed = one["ratio"] < one["target_ratio"]
        words = (f"目标 {target}" + ("，**未达到**" if missed else "")) if zh else (f"target {target}" + (", **missed**" if missed else ""))
        rows.append(
            [
                f"绑定速度，与没有扩展器时相比，{one['nodes']} 个节点"
                if zh
                else f"pods bound a second, of the rate without the extender, {one['nodes']} nodes",
                ratio,
                words,
            ]
        )
    rows.append(
        [
            f"四个各自占满 GPU 的程序合计，与一个的吞吐量相比（{report.gpu}）"
            if zh
            else f"throughput of four programs that each fill the GPU, of that of one ({report.gpu})",
            f"{100 * alone:.0f} %",
            f"MPS 下 {100 * with_mps:.0f} %" if zh else f"with MPS {100 * with_mps:.0f} %",
        ]
    )
    return table(["测量项", "结果", "对照"] if zh else ["measured", "result", "beside it"], rows)


#: Parts of a README by their names.
PARTS: Final = {"status": status, "install": install, "costs": costs, "limits": limits, "figures": figures}
