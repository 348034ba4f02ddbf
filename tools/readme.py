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

from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.virtual_environment import OLDEST
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import MINIMUM_DRIVER
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
_SUPPORT, _MODELS = "docs/start/support.md", "docs/start/gpus.md"
_PROOF, _GLOSSARY, _GOVERNANCE = "docs/project/gpu-proof.md", "docs/project/glossary.md", "docs/project/governance.md"
_NEEDS, _BENCHMARKS, _ISOLATION = "docs/start/requirements.md", "docs/project/benchmarks/README.md", "docs/operate/isolation.md"
#: Of a line of Markdown.
_COLUMNS: Final = 120
#: What no report of a real GPU has, and how it was tried.
_NOT_REAL: Final = (("MPS inside pods", "**simulated**"), ("evictions", "**tested**"), ("MIG", "**simulated**"))
#: The release of Kubernetes with which every suite ran before the lab's, as in docs/start/support.md.
_FORMER: Final = "1.36"


def _needs(language: str) -> str:
    """The oldest programs with which services of hosts work, and where all runs were."""
    ansible, python, toolkit = modes.oldest_ansible(), modes.dotted(OLDEST), modes.default_of("gpushare_toolkit_minimum")
    others, which = f"{_SUPPORT}#distributions", "docs/start/modes.md"
    if language == ZH:
        return (
            f"`site` 需要 ansible-core {ansible}、Python {python}、NVIDIA 驱动 {MINIMUM_DRIVER} 和工具包 {toolkit}，或更新的版本，"
            f"`preflight` 在改动主机之前检查：[要求]({_NEEDS})。运行过的都在 {_DISTRIBUTION} 上，[其他发行版]({others})没有运行过。"
            f"[作为服务还是作为 Pod]({which})说明哪种适合你。"
        )
    return textwrap.fill(
        f"`site` needs ansible-core {ansible}, Python {python}, NVIDIA's driver {MINIMUM_DRIVER} and toolkit {toolkit}, or newer. "
        f"`preflight` checks that before it changes a host: [requirements]({_NEEDS}). All runs were on {_DISTRIBUTION}, and none on "
        f"[other distributions]({others}). [Services or pods]({which}) says which fits you.",
        _COLUMNS,
        break_long_words=False,
        break_on_hyphens=False,
    )


def status(language: str) -> str:
    """Where the release is, and how far it has come on real GPUs."""
    at = address.repository()
    published = not address.rejected(at)
    gpu, one = proof.gpu_of_one_node(), f"{_PROOF}#a-cluster-of-one-node"
    if language == ZH:
        get = f"发布版本在[这里]({at}/releases)" if published else "尚未发布：请用 `git clone` 取得本仓库"
        return (
            f"**0.1 版{get}。目前没有已知用户**，[维护者只有一人]({_GOVERNANCE})，不承诺时间。"
            f"在一个带真实 {gpu} 的节点上，它以服务方式完成了安装、由三个 Pod 共享、再到卸载："
            f"[在那台机器的 Linux 命名空间里]({one})。[现状]({_STATUS})说明哪些在哪里运行过。"
        )
    get = f"is [here]({at}/releases)" if published else "is not published yet: take this repository by `git clone`"
    return textwrap.fill(
        f"**Release 0.1 {get}. No user is known yet**, and [one maintainer]({_GOVERNANCE}) promises no time. "
        f"It was installed on one node with a real {gpu} as services, shared by three pods, and removed: "
        f"[in Linux namespaces of its machine]({one}). [Status]({_STATUS}) says what ran where.",
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


def ways(language: str) -> str:
    """Where a reader starts from, what gpushare is there, and what it has run on."""
    gpu, kind = proof.gpu_of_one_node(), _known("limit by the driver", language)
    start, settings, take_over = "docs/start/quickstart.md", f"{_GUIDE}#nvidias-runtime", "docs/operate/migrate.md#the-playbook-take_over"
    argo, kubespray = "docs/operate/integrations.md#argo-cd", "docs/operate/coexist.md#kubespray"
    demo, pending = "docs/start/demo.md", "docs/use/first-pod.md#4-why-does-my-pod-wait"
    if language == ZH:
        return table(
            ["你有", "那里的 gpushare", "运行过的环境"],
            [
                [
                    "kubeadm，能以 root 身份 ssh 登录",
                    f"[主机上的服务]({start})，配合集群自己的调度器，由 Ansible 的 playbook `site` 安装。"
                    f"kubespray 要写上[这些值]({kubespray})，否则它下次运行会去掉调度器里的配置",
                    f"模拟 GPU，以及**一块 {gpu}**；没有用过 kubespray",
                ],
                [
                    "这些节点上已有 NVIDIA 的 device plugin，例如 time-slicing",
                    f"用 [`take_over`]({take_over}) 代替 `site`：其 GPU Pod 要先结束",
                    "模拟 GPU",
                ],
                [
                    "EKS、OpenShift 或其他集群；或者只能用 Helm",
                    f"[Pod](#helm)，自带一个调度器：不触碰你的控制平面。需要由你构建的镜像、一个没有 GPU 的节点，"
                    f"以及 [NVIDIA 运行时的两项设置]({settings})。EKS Auto Mode 和 Fargate 不可行，[Argo CD]({argo}) 可以",
                    f"**从未在那里运行过**：只在 kubeadm 和模拟 GPU 上。没有什么会**阻止 Pod**；"
                    f"驱动 615 或 620 加 `isolation: driver` 可以（{kind}）：EKS 上要用自己的 AMI，OpenShift 不允许",
                ],
                ["一个命名空间，Pod 在 Pending", f"[等待的原因]({pending})，不需要节点的权限", ""],
                [
                    "还没有，想先看看",
                    f"[`make demo`]({demo})，或用 Helm：`make demo-cluster BY=chart`，在用完即弃的 Debian 12 虚拟机上",
                    "模拟 GPU",
                ],
            ],
        )
    return table(
        ["you have", "gpushare there", "has run on"],
        [
            [
                "kubeadm, and root by ssh",
                f"[services of the hosts]({start}) beside your own scheduler, by the Ansible playbook `site`. kubespray needs "
                f"[these values]({kubespray}), or its next run undoes the scheduler's part",
                f"simulated GPUs, and **one {gpu}**; never with kubespray",
            ],
            [
                "NVIDIA's device plugin on such nodes, also with time-slicing",
                f"[`take_over`]({take_over}) in place of `site`: its pods with GPUs end first",
                "simulated GPUs",
            ],
            [
                "EKS, OpenShift or another cluster; or only Helm",
                "[pods](#helm), with a scheduler of their own: your control plane is not touched. You need an image that you build, "
                f"one node without GPUs, and [two settings of NVIDIA's runtime]({settings}). EKS Auto Mode and Fargate are not possible, "
                f"[Argo CD]({argo}) is",
                "**never there**, only on kubeadm with simulated GPUs. **Nothing stops a pod**. "
                f"Driver 615 or 620 with `isolation: driver` would ({kind}): on EKS only by your own AMI, on OpenShift not at all",
            ],
            ["a namespace, and a pod that is Pending", f"[why it waits]({pending}), without rights on nodes", ""],
            [
                "nothing, and want to see it first",
                f"[`make demo`]({demo}), or by Helm `make demo-cluster BY=chart`, on a Debian 12 VM to throw away",
                "simulated GPUs",
            ],
        ],
    )


def _clusters(language: str) -> str:
    """Each kind of cluster: from which Kubernetes on, what to type, what restarts, and what it has run on."""
    gpu, zh = proof.gpu_of_one_node(), language == ZH
    by_hand = ", ".join(modes.maker(name) for name in modes.run_by_hand())
    services, pods, dra = reasons.OLDEST_IN_WORDS.split()[0], modes.dotted(reasons.OLDEST_WITH_POLICIES), modes.OLDEST_WITH_DRA
    rest = [by_hand, *(name for name in modes.makers() if name not in (by_hand, "EKS", "OpenShift", "k3s", "RKE2"))]
    site, preset = "`ansible-playbook -i inventory gpushare.kubernetes.site`", "`--values charts/gpushare/presets/{}.yaml`"
    start, as_pods = "docs/start/quickstart.md#4-install", "`-e gpushare_deploy_mode=kubernetes`"
    by_site = f"{_OTHERS}#k3s-and-rke2-by-site"
    eks, openshift = "[EKS](docs/operate/eks.md)", "[OpenShift](docs/operate/openshift.md)"
    gives, installs = f"{modes.DRA}#what-each-back-end-gives", f"{modes.DRA}#install"
    tested = f"{_FORMER}{'、' if zh else ', '}{_minor(version('kubernetes'))}"
    minor = modes.oldest_of
    k3s = f"k3s、RKE2 {minor('rke2').replace('or', '或')}" if zh else f"k3s, RKE2 {minor('rke2')}"
    if zh:
        simulated, none, nothing = "模拟 GPU", "**尚未运行**", "无"
        return table(
            [f"你的集群，以及最低的 Kubernetes（测试过 {tested}）", "运行过的环境", "输入", "什么会重启"],
            [
                [
                    f"kubeadm {services}，通过 ssh：[作为服务](docs/start/quickstart.md)。早于 {pods} 时需设置 `gpushare_without_policies`",
                    f"{simulated}；真实的 {gpu} 一块",
                    site,
                    f"kube-scheduler；配置有改动时还有容器运行时（[详情]({start})）",
                ],
                [f"kubeadm {pods}，通过 API：作为 Pod", simulated, f"下面的[步骤](#helm)，或[清单、playbook]({_GUIDE}#install)", nothing],
                [
                    f"同上，{dra}，不要第二个调度器（[DRA]({installs})，[功能较少]({gives})）",
                    simulated,
                    "步骤加 `--set backend=dra`，或清单、playbook",
                    nothing,
                ],
                [f"{k3s}，用 Helm", none, f"步骤加 {preset.format('rke2')}", nothing],
                [f"{k3s}，用 [`site`]({by_site})", none, f"`site` 加 {as_pods}", "节点的服务，一次"],
                [
                    f"EKS {minor('eks')}",
                    none,
                    f"照 {eks} 做，只有这些步骤不够：节点的两项设置和污点，再加 {preset.format('eks')}",
                    "无：新节点自带两项设置",
                ],
                [
                    f"OpenShift {minor('openshift')}",
                    none,
                    f"照 {openshift} 做，只有这些步骤不够：改 GPU Operator、污点、命名空间的第二个标签，再加 {preset.format('openshift')}",
                    "GPU Operator 的工具包 Pod；CRI-O 是否重启尚不清楚",
                ],
                [
                    f"[{'、'.join(rest)}]({_OTHERS}) {pods}；{by_hand} {minor('k0s')}",
                    f"{none}；{by_hand} 用{simulated}，一次",
                    "步骤加预设",
                    f"{nothing}；{by_hand} 因运行时的配置重启",
                ],
            ],
        )
    simulated, none, nothing = "simulated GPUs", "**nothing yet**", "nothing"
    return table(
        [f"your cluster, from this Kubernetes on (tested: {tested})", "has run on", "you type", "what restarts"],
        [
            [
                f"**kubeadm {services}, by ssh**: [as services](docs/start/quickstart.md). Before {pods} set `gpushare_without_policies`",
                f"simulated GPUs; **one {gpu}**",
                site,
                f"kube-scheduler; the container runtime if its configuration changes ([quick start]({start}))",
            ],
            [
                f"**kubeadm {pods}, by the API**: as pods",
                simulated,
                f"the [steps](#helm) below, or [manifest, playbook]({_GUIDE}#install)",
                nothing,
            ],
            [
                f"**the same from {dra} on, without a second scheduler** ([DRA]({installs}), [fewer features]({gives}))",
                simulated,
                "the steps with `--set backend=dra`, or manifest, playbook",
                nothing,
            ],
            [f"**{k3s}, by Helm**", none, f"the steps with {preset.format('rke2')}", nothing],
            [f"**{k3s}, by [`site`]({by_site})**", none, f"`site` with {as_pods}", "the node's service, once"],
            [
                f"**EKS {minor('eks')}**",
                none,
                f"follow {eks}, not only the steps: two settings and a taint of the nodes, then {preset.format('eks')}",
                "nothing: new nodes have the two settings",
            ],
            [
                f"**OpenShift {minor('openshift')}**",
                none,
                f"follow {openshift}, not only the steps: a patch of the GPU Operator, a taint, a second label of the namespace, then "
                f"{preset.format('openshift')}",
                "the toolkit's pods of the GPU Operator; whether CRI-O does is not known",
            ],
            [
                f"**[{', '.join(rest)}]({_OTHERS}) {pods}**; {by_hand} {minor('k0s')}",
                f"{none}; {by_hand} on {simulated}, once",
                "the steps with a preset",
                f"nothing; {by_hand} for its runtime's configuration",
            ],
        ],
    )


def install(language: str) -> str:
    """The kinds of clusters, and what the first of them needs."""
    return f"{_clusters(language)}\n\n{_needs(language)}"


def _costs(language: str) -> list[tuple[str, str, str]]:
    """What it costs and what can go wrong: question, services of hosts, pods. A cell says it whole: pages have one of the two."""
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
                "第二个，可在整个集群绑定和删除 Pod。两个调度器可能把同一份 CPU 许诺两次：给 GPU 节点加污点",
            ),
            (
                "准入策略",
                "限制各守护进程的权限",
                f"限制各守护进程的权限；还会拒绝未写明该调度器的 GPU Pod（早于 {older}），以及[容器超过 {most} 个的任何 Pod]({second})",
            ),
            (
                "节点重启",
                f"其 GPU Pod 结束，通常在原来的 GPU 上重新启动（[详情]({reboot})）",
                "其 GPU Pod **失败**，由控制器重建（模拟：8 个中 8 个）",
            ),
            (
                f"{variable} 而不申请",
                f"得不到 GPU，策略 [`envvar`]({visible}) 除外",
                f"NVIDIA 运行时为默认或在某个 RuntimeClass 中时**得到全部 GPU**，直到你改好[两项设置]({settings})",
            ),
            (
                "内存",
                f"扩展器 {extender:.0f} MiB（5000 个节点），每个 device plugin {plugin:.0f} MiB",
                f"两个扩展器各 {extender:.0f} MiB（5000 个节点），各带一个 kube-scheduler；"
                f"每个 device plugin {plugin:.0f} MiB。[CPU、端口]({ports})",
            ),
            (
                "卸载",
                f"`uninstall` 在 Pod 有份额时停止，并逐字节还原你的[文件]({removed})",
                f"[`helm uninstall`]({removed}#helm) **不会停止**：Pod 继续运行，但无法重启",
            ),
        ]
    return [
        (
            "scheduler",
            "the cluster's own, with an extender beside it",
            "a second one, which may bind and delete pods of the whole cluster. "
            "The two may promise the same CPU twice: taint the GPU nodes",
        ),
        (
            "admission policies",
            "restrict the daemons' rights",
            f"restrict the daemons' rights. They also reject a pod with GPUs that does not name the scheduler (before {older}), "
            f"and [any pod with more than {most} containers]({second})",
        ),
        (
            "a node reboots",
            f"its pods with GPUs end. They usually start again on their GPUs ([failures]({reboot}))",
            "its pods with GPUs **fail**, and controllers replace them (8 of 8, simulated)",
        ),
        (
            f"{variable} without a request",
            f"gets no GPU, except by the strategy [`envvar`]({visible})",
            f"**gets every GPU** where NVIDIA's runtime is the default or in a RuntimeClass, until you change [two settings]({settings})",
        ),
        (
            "memory",
            f"extender {extender:.0f} MiB (5000 nodes), each device plugin {plugin:.0f} MiB",
            f"two extenders with {extender:.0f} MiB each (5000 nodes), beside a kube-scheduler each; each device plugin {plugin:.0f} MiB. "
            f"[CPU, ports]({ports})",
        ),
        (
            "removal",
            f"`uninstall` stops while pods have shares, and gives your [files]({removed}) their old bytes back",
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
            ["节点", f"超用显存的 Pod（[隔离]({_ISOLATION})）"],
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
        ["node", f"a pod that takes too much ([isolation]({_ISOLATION}))"],
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
    """Figures with the targets that some of them miss."""
    churn, rates = proof.saved("churn"), [proof.saved(f"scheduling-{name}") for name in ("500", "5000-sampled")]
    placed = {
        (one["part"], one["policy"], one["trace"]): f"{one['in_use']:.1f} %"
        for one in proof.saved("placement")["figures"]
        if one["load"] == 100
    }
    names = ("default", "gpushare100")
    traces = [f"`{name}`" for name in names]
    ours, others = ([placed[part, policy, name] for name in names] for part, policy in (("filled", "binpack"), ("anchor", "FGD")))
    here, original = churn["here"], churn["original"]
    wrong = sum(original["wrong_gpus"].values())
    report = proof.reports()[0]
    full, small = ([f"{100 * one:.0f} %" for one in report.together(kind)] for kind in ("matrix-product", "transformer"))
    nodes = [str(one["nodes"]) for one in rates]
    reached, targets = ([f"{100 * one[key]:.0f} %" for one in rates] for key in ("ratio", "target_ratio"))
    missed = [one["ratio"] < one["target_ratio"] for one in rates]
    zh = language == ZH
    if zh:
        short = "，".join(f"{target}（{'**未达到**' if less else '达到'}）" for target, less in zip(targets, missed, strict=True))
        return table(
            [f"测量项（[全部数字]({_BENCHMARKS})，有些目标没有达到）", "结果", "对照"],
            [
                [
                    f"拿错 GPU 的 Pod，共 {churn['pods']} 个随机 Pod（模拟 GPU）",
                    f"{here['wrong_gpus']}",
                    f"原版的匹配算法，用于 kubelet 准入的 {original['admissions']} 个容器：{wrong} 个。"
                    f"其中 {churn['several_containers']} 个 Pod 有多个容器，{churn['several_gpus']} 个用多块 GPU，原版并不支持",
                ],
                [
                    f"GPU 使用率，trace {'、'.join(traces)}（模拟）",
                    "、".join(ours),
                    f"[FGD]({_GLOSSARY}) 在其作者自己的模型中：{'、'.join(others)}",
                ],
                [f"绑定速度，占没有扩展器时的比例，{'、'.join(nodes)} 个节点", "、".join(reached), f"目标 {short}"],
                [
                    f"四个程序在一块 {report.gpu} 上的合计速度，与一个相比",
                    f"轮流运行，各自占满 GPU：{full[0]}；小程序：{small[0]}",
                    f"MPS 下 {full[1]}、{small[1]}",
                ],
            ],
        )
    short = ", ".join(f"{target}{' **missed**' if less else ''}" for target, less in zip(targets, missed, strict=True))
    return table(
        [f"measured ([all figures]({_BENCHMARKS}); some targets were missed)", "result", "beside it"],
        [
            [
                f"wrong GPUs of {churn['pods']} random pods, on simulated GPUs",
                f"{here['wrong_gpus']}",
                f"the original's matching, for the {original['admissions']} containers that kubelet admitted: {wrong}. "
                f"{churn['several_containers']} of the pods have several containers and {churn['several_gpus']} several GPUs, "
                "which the original does not support",
            ],
            [
                f"GPUs in use, traces {_list(traces)} (simulation)",
                _list(ours),
                f"[FGD]({_GLOSSARY}), in its authors' own model: {_list(others)}",
            ],
            [f"pods bound a second with {_list(nodes)} nodes, of the rate without the extender", _list(reached), f"targets {short}"],
            [
                f"four programs on one {report.gpu}, of the work of one",
                f"in turns {full[0]} if each fills the GPU, {small[0]} if they are small",
                f"with MPS {full[1]} and {small[1]}",
            ],
        ],
    )


#: Parts of a README by their names.
PARTS: Final = {"ways": ways, "status": status, "install": install, "costs": costs, "limits": limits, "figures": figures}
