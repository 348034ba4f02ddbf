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
_FOOTPRINT = "docs/operate/footprint.md"
_PROOF, _GOVERNANCE = "docs/project/gpu-proof.md", "docs/project/governance.md"
_NEEDS, _BENCHMARKS, _ISOLATION = "docs/start/requirements.md", "docs/project/benchmarks/README.md", "docs/operate/isolation.md"
#: Of a line of Markdown.
_COLUMNS: Final = 120
#: What no report of a real GPU has, and how it was tried.
_NOT_REAL: Final = (("MPS inside pods", "**simulated**"), ("evictions", "**tested**"), ("MIG", "**simulated**"))
#: The release of Kubernetes with which every suite ran before the lab's, as in docs/start/support.md.
_FORMER: Final = "1.36"
#: Of a cell: as the one to the left of it, in English and Chinese.
_THE_SAME: Final = ("the same", "同左")


def _needs(language: str) -> str:
    """The oldest programs with which services of hosts work."""
    ansible, python, toolkit = modes.oldest_ansible(), modes.dotted(OLDEST), modes.default_of("gpushare_toolkit_minimum")
    which = "docs/start/modes.md"
    if language == ZH:
        return (
            f"`site` 需要 ansible-core {ansible}、Python {python}、NVIDIA 驱动 {MINIMUM_DRIVER} 和工具包 {toolkit}，或更新的版本，"
            f"`preflight` 检查[这些要求]({_NEEDS})。"
            f"[作为服务还是作为 Pod]({which})说明哪种适合你。"
        )
    return textwrap.fill(
        f"`site` needs ansible-core {ansible}, Python {python}, NVIDIA's driver {MINIMUM_DRIVER} and toolkit {toolkit}, or newer. "
        f"`preflight` checks [that]({_NEEDS}). [Services or pods]({which}) says which fits you.",
        _COLUMNS,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _doors(language: str) -> str:
    """The ways in, by cluster: what each has run on, and what it may do there."""
    gpu, rights, ssh = proof.gpu_of_one_node(), "docs/reference/permissions.md", "#ansible"
    services, pods = reasons.OLDEST_IN_WORDS.split()[0], modes.dotted(reasons.OLDEST_WITH_POLICIES)
    eks, openshift = "docs/operate/eks.md", "docs/operate/openshift.md"
    if language == ZH:
        return table(
            ["你有", "安装方式", "运行过的环境", f"它的权限（[全部]({rights})）"],
            [
                [
                    f"**kubeadm {services}+**，root 身份 ssh",
                    f"[Ansible]({ssh})：作为服务",
                    f"模拟 GPU，一块 {gpu}",
                    "Ansible 是主机上的 root。device plugin 是没有 capability 的 root，扩展器不是 root",
                ],
                [
                    f"**kubeadm {pods}+** 或 **EKS {modes.oldest_of('eks')}+**，通过 API",
                    f"[Helm](#helm)、[EKS]({eks})：作为 Pod",
                    "模拟 GPU；EKS **从未**",
                    "第二个调度器，可绑定和删除整个集群的 Pod；每个 GPU 节点上一个 root Pod，能看到所有进程（`hostPID`）",
                ],
                [
                    f"**OpenShift {modes.oldest_of('openshift')}+**",
                    f"[OpenShift]({openshift})：作为 Pod",
                    "**从未**",
                    "同上，且 SELinux 实际上不限制这个 Pod",
                ],
            ],
        )
    return table(
        ["you have", "install", "has run on", f"what it may do ([all rights]({rights}))"],
        [
            [
                f"**kubeadm {services}+**, and root by ssh",
                f"[Ansible]({ssh}), as services",
                f"simulated GPUs, one {gpu}",
                "Ansible is root on the hosts. The device plugin is root without capabilities, the extender is not root",
            ],
            [
                f"**kubeadm {pods}+** or **EKS {modes.oldest_of('eks')}+**, by the API",
                f"[Helm](#helm) or [EKS]({eks}), as pods",
                "simulated GPUs; EKS **never**",
                "a second scheduler binds and deletes pods of the whole cluster. On each GPU node, a pod of root sees all "
                "processes (`hostPID`)",
            ],
            [
                f"**OpenShift {modes.oldest_of('openshift')}+**",
                f"[OpenShift]({openshift}), as pods",
                "**never**",
                "the same, and SELinux in effect does not confine that pod",
            ],
        ],
    )


def status(language: str) -> str:
    """The ways in, where the release is, and how far it has come on real GPUs."""
    at = address.repository()
    published = not address.rejected(at)
    gpu, one, check = proof.gpu_of_one_node(), f"{_PROOF}#a-cluster-of-one-node", f"{_GUIDE}#with-helm"
    ((preset, by_hand),) = [(name, modes.maker(name)) for name in modes.run_by_hand()]
    once = f"[{by_hand}]({_OTHERS}#{preset})"
    if language == ZH:
        get = f"发布版本在[这里]({at}/releases)" if published else "尚未发布：请克隆本仓库"
        return (
            f"{_doors(ZH)}\n\n"
            f"**0.1 版{get}。目前没有已知用户**，[维护者只有一人]({_GOVERNANCE})，不承诺时间。"
            f"它在 kubeadm、{_DISTRIBUTION} 和模拟 GPU 上运行过，在 {once} 上运行过一次，"
            f"并以服务方式在[一个带真实 {gpu} 的节点]({one})上运行过"
            f"（由 Linux 命名空间构成，不是独立的主机）。 "
            f"**其他系统[只依据文档]({_STATUS})**，包括 [Ubuntu]({_SUPPORT}#distributions)、kubespray、A100 和 RTX。"
            f"先做检查：通过 ssh 用 `preflight`，或通过 kubeconfig 用 [`cluster --check`]({check})。"
        )
    get = f"is [here]({at}/releases)" if published else "is not published yet: clone this repository"
    # On one line, for those who search the page.
    text = textwrap.fill(
        f"**Release 0.1 {get}. No user is known**, and [one maintainer]({_GOVERNANCE}) promises no time. It ran on kubeadm, "
        f"{_DISTRIBUTION} and simulated GPUs, once on {once}, and as services on a node of Linux namespaces with [a\0real\0{gpu}]({one}). "
        f"**The rest is from [documentation only]({_STATUS})**: [Ubuntu]({_SUPPORT}#distributions), kubespray, A100 "
        f"and RTX. Begin with a check: `preflight` by ssh, or [`cluster --check`]({check}) by kubeconfig.",
        _COLUMNS,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{_doors(EN)}\n\n{text}".replace("\0", " ")


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
    """Each kind of cluster: from which Kubernetes on, what it has run on, what to do, what restarts."""
    gpu, zh = proof.gpu_of_one_node(), language == ZH
    (by_hand,) = (modes.maker(name) for name in modes.run_by_hand())
    services, pods, dra = reasons.OLDEST_IN_WORDS.split()[0], modes.dotted(reasons.OLDEST_WITH_POLICIES), modes.OLDEST_WITH_DRA
    rest = [name for name in modes.makers() if name not in (by_hand, "EKS", "OpenShift", "k3s", "RKE2")]
    start, kubespray, by_site = "docs/start/quickstart.md", "docs/operate/coexist.md#kubespray", f"{_OTHERS}#k3s-and-rke2-by-site"
    take_over, auto = "docs/operate/migrate.md#the-playbook-take_over", "docs/operate/eks.md#eks-auto-mode"
    eks, openshift = "[EKS](docs/operate/eks.md)", "[OpenShift](docs/operate/openshift.md)"
    anew, argo, late = "docs/operate/eks.md#nodes", "docs/operate/integrations.md#argo-cd", f"{_GUIDE}#with-helm"
    gives, installs = f"{modes.DRA}#what-each-back-end-gives", f"{modes.DRA}#install"
    slicing = "docs/operate/migrate.md#from-time-slicing"
    tested = f"{_minor(version('kubernetes'))}{'、' if zh else ' and '}{_FORMER}"
    minor = modes.oldest_of
    if zh:
        simulated, none, nothing = "模拟 GPU", "**尚未运行**", "无"
        return table(
            [f"你的集群，以及最低的 Kubernetes（[测试过]({_SUPPORT}#kubernetes) {tested}）", "运行过的环境", "怎么做", "什么会重启"],
            [
                [
                    f"**kubeadm {services}**，能以 root 身份 ssh 登录",
                    f"{simulated}，以及**一块 {gpu}**；没有用过 kubespray",
                    f"[主机上的服务](#ansible)，用 playbook `site`。用 kubespray 的先读完[这一节]({kubespray})",
                    f"kube-scheduler；配置有改动时还有容器运行时（[哪些]({start}#4-install)）。运行中的容器继续运行",
                ],
                [
                    f"同上，节点上已有 NVIDIA 的 device plugin，例如 [time-slicing]({slicing})",
                    f"{simulated}，用的是 NVIDIA 插件的替身，没有 time-slicing",
                    f"先结束这些节点上带 `nvidia.com/gpu` 的 Pod，再用 playbook [`take_over`]({take_over}) 代替 `site`",
                    "同上；还有 NVIDIA 的插件，在它的所有节点上",
                ],
                [
                    f"**kubeadm {pods}**，通过 API",
                    simulated,
                    f"[Helm](#helm)、[Argo CD]({argo})（策略[晚几秒]({late})）、[清单或 playbook]({_GUIDE}#install)：作为 Pod",
                    nothing,
                ],
                [
                    f"同上，{dra}，不要第二个调度器：用 Kubernetes 的 claim（[DRA]({installs})，[功能较少]({gives})）",
                    simulated,
                    "Helm 加 `--set backend=dra`，或清单、playbook",
                    nothing,
                ],
                [
                    f"**EKS {minor('eks')}**，[Auto Mode 和 Fargate]({auto}) 不可行",
                    none,
                    f"{eks}：Karpenter 或节点组",
                    f"无；GPU 节点要[新建]({anew})，因为用户数据、标签和污点",
                ],
                [
                    f"**OpenShift {minor('openshift')}**",
                    none,
                    f"{openshift}。所有节点都会失去 `nvidia.com/gpu`",
                    "GPU Operator 的工具包 Pod；CRI-O 是否重启尚不清楚",
                ],
                [
                    f"**k3s、RKE2 {minor('rke2').replace('or', '或')}；{by_hand} {minor('k0s')}；{'、'.join(rest)} {pods}**",
                    f"{none}；{by_hand} 用{simulated}，一次",
                    f"Helm 加[预设]({_OTHERS})；k3s、RKE2 也可用 [`site`]({by_site})",
                    f"{nothing}；用 `site` 时和在 {by_hand} 上，节点的服务一次",
                ],
            ],
        )
    simulated, none, nothing = "simulated GPUs", "**nothing yet**", "nothing"
    return table(
        [
            f"your cluster, and the oldest Kubernetes for it ([tests]({_SUPPORT}#kubernetes): {tested})",
            "has run on",
            "what to do",
            "what restarts",
        ],
        [
            [
                f"**kubeadm {services}**, and root by ssh",
                f"simulated GPUs, and **one {gpu}**; never with kubespray",
                f"[services of the hosts](#ansible), by the playbook `site`. With kubespray first read [this section]({kubespray}) to "
                "its end",
                f"kube-scheduler; the container runtime if its configuration changes ([which]({start}#4-install)). Running containers "
                "continue",
            ],
            [
                f"the same with NVIDIA's device plugin, also with [time-slicing]({slicing})",
                f"{simulated}, with a stand-in for NVIDIA's plugin, without time-slicing",
                f"end these nodes' pods with `nvidia.com/gpu`, then the playbook [`take_over`]({take_over}) in place of `site`",
                "the same; also NVIDIA's plugin, on all of its nodes",
            ],
            [
                f"**kubeadm {pods}**, by the API",
                simulated,
                f"[Helm](#helm), [Argo CD]({argo}) (policies come [seconds late]({late})), [manifest or playbook]({_GUIDE}#install): "
                "as pods",
                nothing,
            ],
            [
                f"the same from {dra} on, without a second scheduler: by Kubernetes' claims ([DRA]({installs}), [fewer features]({gives}))",
                simulated,
                "Helm with `--set backend=dra`, or manifest, playbook",
                nothing,
            ],
            [
                f"**EKS {minor('eks')}**; [not Auto Mode, not Fargate]({auto})",
                none,
                f"{eks}, by Karpenter or node groups",
                f"nothing. GPU nodes are [replaced]({anew}), for user data, label and taint",
            ],
            [
                f"**OpenShift {minor('openshift')}**",
                none,
                f"{openshift}. All nodes lose `nvidia.com/gpu`",
                "the toolkit's pods of the GPU Operator; whether CRI-O does is not known",
            ],
            [
                f"**k3s, RKE2**: {minor('rke2')}. **{by_hand}**: {minor('k0s')}. **{', '.join(rest)}**: {pods}",
                f"{none}; {by_hand} on {simulated}, once",
                f"Helm with a [preset]({_OTHERS}); k3s, RKE2 also [`site`]({by_site})",
                f"{nothing}; by `site` and on {by_hand} the node's service, once",
            ],
        ],
    )


def install(language: str) -> str:
    """The kinds of clusters, and what the first of them needs."""
    return f"{_clusters(language)}\n\n{_needs(language)}"


def _costs(language: str) -> list[tuple[str, str, str]]:
    """What it costs and what can go wrong: question, services of hosts, pods. A cell says it whole: pages have one of the two."""
    settings, removed, ports = f"{_GUIDE}#nvidias-runtime", "docs/operate/uninstall.md", _FOOTPRINT
    reboot, second = "docs/operate/failures.md#as-pods", f"{_GUIDE}#limits-of-a-second-scheduler"
    variable, most, older = "`NVIDIA_VISIBLE_DEVICES=all`", policies.FEW, modes.NAMES_THE_SCHEDULER
    extender, plugin = proof.saved("scheduling-5000-sampled")["startup"]["resident_mib"], proof.most_memory_of_plugin()
    visible, rights = "docs/operate/visibility.md#what-each-strategy-stops", "docs/reference/permissions.md"
    failures = "docs/operate/failures.md"
    if language == ZH:
        return [
            (
                "调度器",
                f"集群自己的，旁边加一个扩展器：gpushare 选择 GPU 的服务。它停了，GPU Pod [等待]({failures})",
                f"第二个，可在整个集群[绑定和删除 Pod]({rights})；它停了，GPU Pod [等待]({failures})。"
                f"[给 GPU 节点加污点]({second})：两个调度器可能许诺同一份 CPU",
            ),
            (
                "准入策略",
                "限制各守护进程的权限",
                f"限制各守护进程的权限，并拒绝未写明该调度器的 `aliyun.com/*` Pod（早于 {older}）"
                f"和[容器超过 {most} 个的任何 Pod]({second})",
            ),
            (
                "节点重启",
                f"其 GPU Pod 结束，通常在原来的 GPU 上重新启动（[详情]({reboot})）",
                "其 GPU Pod **失败**（模拟：8 个裸 Pod 中 8 个），控制器会新建",
            ),
            (
                f"{variable} 而不申请",
                f"得不到 GPU，除非用[变量]({visible})交出 GPU",
                f"NVIDIA 运行时为默认或在某个 RuntimeClass 中时**得到全部 GPU**，直到你改好[两项设置]({settings})",
            ),
            ("扩展器停了", f"新的 GPU Pod 等待，运行中的继续（[详情]({failures})）", _THE_SAME[1]),
            (
                "内存",
                f"扩展器 {extender:.0f} MiB（5000 个节点），每个 device plugin {plugin:.0f} MiB",
                f"两个扩展器各 {extender:.0f} MiB（5000 个节点），各带一个 kube-scheduler；"
                f"每个 device plugin {plugin:.0f} MiB。[CPU、端口]({ports})",
            ),
            (
                "卸载",
                f"`uninstall` 在 Pod 有份额时停止，并从你的[文件]({removed})中去掉自己的部分",
                f"[`helm uninstall`]({removed}#helm) 不做检查：有份额的 Pod 继续运行，但容器结束后**无法再启动**",
            ),
        ]
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
        ("the extender is down", f"pods with GPUs wait; those that run go on ([failures]({failures}))", _THE_SAME[0]),
        (
            "memory",
            f"extender {extender:.0f} MiB (5000 nodes), each device plugin {plugin:.0f} MiB",
            f"two extenders with {extender:.0f} MiB each (5000 nodes), beside a kube-scheduler each; each device plugin {plugin:.0f} MiB. "
            f"[CPU, ports]({ports})",
        ),
        (
            "removal",
            f"`uninstall` stops while pods have shares, and takes its part out of your [files]({removed})",
            f"[`helm uninstall`]({removed}#helm) asks nothing: pods with shares go on, but a container that ends **cannot start again**",
        ),
    ]


def costs(language: str) -> str:
    """The costs of both modes, for the README: where they differ."""
    header = ["", "作为服务", "作为 Pod"] if language == ZH else ["", "as services", "as pods"]
    return table(header, [row for row in _costs(language) if row[2] not in _THE_SAME])


def costs_of_pods() -> str:
    """The same of pods alone, for the pages of clusters that have no other mode."""
    return table(
        ["", "what it costs, and what can go wrong"],
        [(what, services if pods in _THE_SAME else pods) for what, services, pods in _costs(EN)],
    )


def limits(language: str) -> str:
    """What happens to a pod that takes more than its share, by the node."""
    if language == ZH:
        return table(
            ["节点", f"超用显存的 Pod（[隔离]({_ISOLATION})）", "不足"],
            [
                [
                    f"默认情况，任何[早于 615 的驱动]({_MODELS})",
                    "**不会被阻止**：告警 Event；若你开启，则被驱逐",
                    "同一 GPU 上其他 Pod 的分配可能失败",
                ],
                [
                    "驱动 615 或 620",
                    f"下一次分配**失败**（{_known('limit by the driver', ZH)}）",
                    "`cudaMallocManaged` 不受限。以 Pod 安装时需设置 `isolation: driver`，OpenShift 上不可用",
                ],
                [
                    "MPS 开启（仅限以服务安装）",
                    f"进程的下一次分配**失败**（{_known('limit by MPS', ZH)}，由 Pod 之外的程序测得）",
                    "限制按进程而非按 Pod。一个程序的致命错误会终止该 GPU 上的全部程序",
                ],
            ],
        )
    return table(
        ["node", f"a pod that takes too much ([isolation]({_ISOLATION}))", "but"],
        [
            [
                f"by default, with any [driver before 615]({_MODELS})",
                "is **not stopped**: it gets a warning Event, and if you switch that on, an eviction",
                "allocations of its neighbours may fail",
            ],
            [
                "driver 615 or 620",
                f"its next allocation **fails** ({_known('limit by the driver', EN)})",
                "not one by `cudaMallocManaged`. As pods you set `isolation: driver` for that, which OpenShift does not allow",
            ],
            [
                "with MPS, only as services",
                f"a process's next allocation **fails** ({_known('limit by MPS', EN)}, outside of pods)",
                "each process of a pod has the whole limit. A fatal fault of one program ends all on the GPU",
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
    here, original = churn["here"], churn["original"]
    wrong, pairs = original["wrong_gpus"], [[f"{proof.rate(one, extender=side):.0f}" for side in (True, False)] for one in rates]
    report = proof.reports()[0]
    bare, ours = ([f"{ms:.1f}" for ms in of_all] for of_all in zip(*map(proof.cpu, rates), strict=True))
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
                    f"[阿里云原版](docs/operate/migrate-original.zh-CN.md)，{original['admissions']} 个容器："
                    f"{wrong['another']} 个拿到别的 GPU，"
                    f"{wrong['none']} 个没有拿到，{wrong['too_few']} 个拿少了。"
                    f"原版不支持多个容器（{churn['several_containers']} 个 Pod）或多块 GPU（{churn['several_gpus']} 个）",
                ],
                [
                    f"每秒绑定的 Pod，{'、'.join(nodes)} 个节点，与没有 gpushare 时相比",
                    "、".join(f"{mine} 比 {bare}（{part}）" for (mine, bare), part in zip(pairs, reached, strict=True)),
                    f"目标 {short}。每个 Pod 的 CPU：{'、'.join(ours)} ms，没有 gpushare 时 {'、'.join(bare)} ms",
                ],
                [
                    f"四个程序在一块 {report.gpu} 上的合计速度，单独一个为 100 %",
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
                f"[Alibaba's original](docs/operate/migrate-original.md): of {original['admissions']} containers {wrong['another']} got "
                f"another GPU, {wrong['none']} none, {wrong['too_few']} too few. It does not support several containers "
                f"({churn['several_containers']} pods) or GPUs ({churn['several_gpus']})",
            ],
            [
                f"pods bound a second with {_list(nodes)} nodes, beside the rate without gpushare",
                _list([f"{mine} of {bare} ({part})" for (mine, bare), part in zip(pairs, reached, strict=True)]),
                f"targets {short}. CPU of all components for each pod: {_list(ours)} ms, without gpushare {_list(bare)}",
            ],
            [
                f"work of four programs together on one {report.gpu}, where one alone does 100 %",
                f"in turns {full[0]} if each fills the GPU, {small[0]} if they are small",
                f"with MPS {full[1]} and {small[1]}",
            ],
        ],
    )


#: Parts of a README by their names.
PARTS: Final = {"status": status, "install": install, "costs": costs, "limits": limits, "figures": figures}
