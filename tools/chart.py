# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The templates of charts/gpushare, made from the builders: tools/manifests.py writes and checks them.

The builders make the objects once with every part that a value may bring. Where they make other objects without one, the difference is
what the template has in a condition. Values that go into the objects as they are stand there as words, which become expressions.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_GPUS,
    ANNOTATION_SCHEDULER_CONFIG,
    ANNOTATION_SETTINGS,
    DASHBOARD,
    DRA_HAMI,
    DRA_NVIDIA,
    DRA_OWN,
    LABEL_NODE,
    RUNTIME_CLASS,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import workloads
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.dra import UNIT_QUANTITIES
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.in_cluster import objects
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.policies import PLUGIN, SCHEDULER
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import SCHEDULER_REPOSITORY, Values
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._settings.table import DAEMONS

#: Of the pods whose settings are an annotation: their name, and the word of the template.
_SETTINGS_OF: Final = {SCHEDULER: "x-extender-settings", PLUGIN: "x-plugin-settings", DASHBOARD: "x-dashboard-settings"}
_NO_VERSION = (
    "found a version of Kubernetes without its third number, or with one from 100 on, which is AKS' own; expected one such as v1.36.3, "
    "which kube-scheduler's image has: set schedulerImage, or kubeVersion of Argo CD"
)
#: What preflight rejects on OpenShift, where Helm is all there is.
_REJECTED = (
    '{{- if and .Values.openshift (eq .Values.isolation "driver") }}\n'
    '{{- fail "found isolation: driver with openshift: true; expected auto, watch or none: the constraints by which OpenShift admits the '
    'device plugin have no capability CAP_SYS_ADMIN. Leave isolation out" }}\n{{- end }}\n'
)
#: What the chart can see of a cluster, and cannot have with the back end DRA. `lookup` finds nothing where there is no cluster to ask.
_REJECTED_BY_DRA: Final = (
    (
        'semverCompare "<1.37.0-0" .Capabilities.KubeVersion.Version',
        "found Kubernetes {{ .Capabilities.KubeVersion.Version }} with backend: dra; expected 1.37 or newer: upgrade the cluster, or leave "
        "backend out",
    ),
    *(
        (
            f'not (.Capabilities.APIVersions.Has "{api}")',
            f"the API server does not serve {api}, which backend: dra needs: let it serve that (--feature-gates, --runtime-config), or "
            "leave backend out",
        )
        for api in ("resource.k8s.io/v1/ResourceSlice", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
    ),
    *(
        (condition, f"found {found} with backend: dra, which does not have that yet: {cure}, or leave backend out")
        for condition, found, cure in (
            (".Values.openshift", "openshift: true", "leave it out"),
            ('eq .Values.overuse "evict"', "overuse: evict", "leave it out"),
            (
                'not (has .Values.deviceStrategy (list "auto" "cdi"))',
                "deviceStrategy: {{ .Values.deviceStrategy }}",
                "leave it out, because containers get their GPUs by CDI",
            ),
        )
    ),
    (
        'lookup "apps/v1" "Deployment" .Release.Namespace "gpushare-scheduler"',
        "found the Deployment gpushare-scheduler of backend: extender; expected none with backend: dra, because two accounts of the same "
        "memory would book it twice: end the pods with GPUs, uninstall that release, then install this one",
    ),
)
_REJECTED_BY_EXTENDER: Final = (
    (
        'eq .Values.unhealthy "evict"',
        "found unhealthy: evict with backend: extender; expected backend: dra, by which Kubernetes evicts the pods of a GPU that fails: "
        "leave unhealthy out",
    ),
    (
        'lookup "apps/v1" "Deployment" .Release.Namespace "gpushare-claims"',
        "found the Deployment gpushare-claims of backend: dra; expected none with backend: extender, because two accounts of the same "
        "memory would book it twice: end the pods with GPUs, uninstall that release, then install this one",
    ),
)
#: Drivers of others that publish the same GPUs on a node of ours.
_OTHER_DRIVERS: Final = (
    '{{- range (lookup "resource.k8s.io/v1" "ResourceSlice" "" "").items }}\n'
    f'{{{{- if and (has .spec.driver (list "{DRA_NVIDIA}" "{DRA_HAMI}")) .spec.nodeName }}}}\n'
    '{{- $node := lookup "v1" "Node" "" .spec.nodeName }}\n'
    f'{{{{- if eq (dig "metadata" "labels" "{LABEL_NODE}" "" $node) "true" }}}}\n'
    '{{- fail (printf "found the DRA driver %s with GPUs of node %s, which has our label; expected no other manager of these GPUs: keep '
    'that driver off the node, or remove the label" .spec.driver .spec.nodeName) }}\n{{- end }}\n{{- end }}\n{{- end }}\n'
)
#: What a release that was uninstalled has given. Its pods keep that, and the other back end does not know of it.
_CLAIMS_LEFT: Final = (
    '{{- if and .Release.IsInstall (.Capabilities.APIVersions.Has "resource.k8s.io/v1/ResourceClaim") }}\n'
    '{{- range (lookup "resource.k8s.io/v1" "ResourceClaim" "" "").items }}\n{{- $claim := .metadata }}\n'
    '{{- range dig "status" "allocation" "devices" "results" (list) . }}\n'
    f'{{{{- if eq .driver "{DRA_OWN}" }}}}\n'
    '{{- fail (printf "found the ResourceClaim %s/%s with a GPU of backend: dra; expected none with backend: extender, because its memory '
    "would be booked twice: install backend: dra again, without which kubelet ends no such pod, end the pods with GPUs, uninstall that "
    'release, then install this one" $claim.namespace $claim.name) }}\n'
    "{{- end }}\n{{- end }}\n{{- end }}\n{{- end }}\n"
)
#: The same of the extender. All pods are read only where its device plugin has left a node's annotation.
_SHARES_LEFT: Final = (
    "{{- if .Release.IsInstall }}\n{{- $nodes := dict }}\n"
    '{{- range (lookup "v1" "Node" "" "").items }}\n'
    f'{{{{- if dig "metadata" "annotations" "{ANNOTATION_GPUS}" "" . }}}}\n'
    "{{- $_ := set $nodes .metadata.name true }}\n{{- end }}\n{{- end }}\n"
    '{{- if $nodes }}\n{{- range (lookup "v1" "Pod" "" "").items }}\n'
    f'{{{{- if and (hasKey $nodes (.spec.nodeName | default "")) (dig "metadata" "annotations" "{ANNOTATION_ALLOCATION}" "" .) '
    '(not (has .status.phase (list "Succeeded" "Failed"))) }}\n'
    '{{- fail (printf "found the pod %s/%s with a GPU of backend: extender; expected none with backend: dra, because its memory would be '
    'booked twice: end the pods with GPUs first" .metadata.namespace .metadata.name) }}\n'
    "{{- end }}\n{{- end }}\n{{- end }}\n{{- end }}\n"
)
#: Words of the objects to the expressions that take their place.
WORDS: Final[Mapping[str, str]] = {
    "x-namespace": ".Release.Namespace",
    "x-image": ".Values.image",
    # `or` leaves the rest alone where it needs it not. Argo CD up to 3.3 tells the chart no more than v1.36 (its issue 26330).
    "x-scheduler-image": f'or .Values.schedulerImage (printf "{SCHEDULER_REPOSITORY}:%s" (required "{_NO_VERSION}" '
    '(regexFind "^v1[.][0-9]+[.][0-9]+" (regexFind "^v1[.][0-9]+[.][0-9]{1,2}([^0-9]|$)" .Capabilities.KubeVersion.Version))))',
    "x-runtime-class": ".Values.runtimeClass",
    "x-host": ".Values.apiServer.host",
    "64999": ".Values.apiServer.port",
    "/x-kubelet": ".Values.kubeletRoot",
    "/x-driver": ".Values.driverRoot",
    "/x-cdi": ".Values.cdiDir",
    "x-selinux": ".Values.selinuxType",
    "64996": ".Values.percentageOfNodesToScore",
    "64995": ".Values.extenderWeight",
    "x-timeout": ".Values.extenderHttpTimeout",
    "http://x-prometheus": ".Values.prometheus",
    "x-dashboard-host": ".Values.dashboard.hostName",
    "64994": ".Values.replicas",
    "x-config": 'include "gpushare.schedulerConfig" .',
    "x-digest": 'include "gpushare.schedulerConfig" . | sha256sum',
    "x-plugin-settings": 'include "gpushare.devicePluginSettings" .',
    "x-extender-settings": 'include "gpushare.extenderSettings" .',
    "x-dashboard-settings": 'include "gpushare.dashboardSettings" .',
    "64993": 'regexFind "^[0-9]+" .Values.memoryUnit | default "1"',
    "x-suffix": 'hasPrefix "G" .Values.memoryUnit | ternary "Gi" "Mi"',
}
#: The settings of daemons that are not the chart's value as it is.
SETTINGS: Final[Mapping[str, str]] = {
    "isolation": 'eq .Values.isolation "auto" | ternary "watch" .Values.isolation',
    "deviceStrategy": 'eq .Values.backend "dra" | ternary "cdi" .Values.deviceStrategy',
}
#: Those that are made of more than a value, by their keys.
_MADE: Final[Mapping[str, str]] = {
    "hostNames": f'list "localhost" (printf "{DASHBOARD}.%s.svc" .Release.Namespace) (printf "{DASHBOARD}.%s" .Release.Namespace) '
    ".Values.dashboard.hostName | compact"
}


def _of(labels: Mapping[str, str]) -> str:
    return f"dict {' '.join(json.dumps(word) for pair in labels.items() for word in pair)}"


#: Those that take the place of more than a text.
PARTS: Final[dict[str, str]] = {
    "x-tolerations": ".Values.tolerations | toJson",
    "x-node-selector": f"merge ({_of(workloads.OWN_LABELS)}) .Values.nodeSelector | toJson",
    "x-scheduler-tolerations": f"concat (list ({_of(workloads.CONTROL_PLANES)})) .Values.scheduler.tolerations | toJson",
    "x-scheduler-node-selector": f"merge ({_of(workloads.LINUX)}) .Values.scheduler.nodeSelector | toJson",
    "x-pull-secrets": ".Values.imagePullSecrets | toJson",
}
#: Containers whose requests and limits are a value, with its name. Those of the defaults are the builders' own.
_RESOURCES: Final = {"kube-scheduler": "scheduler", "extender": "extender", "device-plugin": "devicePlugin", "dashboard": "dashboard"}
PARTS.update({f"x-resources-{value}": f".Values.resources.{value} | toJson" for value in _RESOURCES.values()})
_WRITERS: Final = '[\\"x-writer\\"]'
_RANGE: Final = '[{{ range $place, $user := .Values.annotationWriters }}{{ if $place }}, {{ end }}\\"{{ $user }}\\"{{ end }}]'
FULL: Final = Values(
    image="x-image",
    scheduler_image="x-scheduler-image",
    namespace="x-namespace",
    runtime_class=RUNTIME_CLASS,
    api_server="https://x-host:64999",
    openshift=True,
    kubelet_root="/x-kubelet",
    driver_root="/x-driver",
    cdi_dir="/x-cdi",
    selinux_type="x-selinux",
    writers=("x-writer",),
    replicas=64994,
    isolation="driver",
    device_strategy="cdi",
    overuse="evict",
    percentage=64996,
    extender_weight=64995,
    extender_http_timeout="x-timeout",
    prometheus="http://x-prometheus",
    dashboard=True,
    dashboard_hosts=("x-dashboard-host",),
    pull_secrets=("x-pull-secret",),
    metrics=True,
    pod_monitors=True,
)
FULL_BY_CLAIMS: Final = replace(FULL, backend="dra", openshift=False, overuse="report")
#: Without which value the objects are others, and the condition of what they lack then.
CONDITIONS: Final[tuple[tuple[Mapping[str, Any], str], ...]] = (
    ({"runtime_class": ""}, ".Values.runtimeClass"),
    ({"runtime_class": "x-other"}, f'eq .Values.runtimeClass "{RUNTIME_CLASS}"'),
    ({"api_server": ""}, ".Values.apiServer.host"),
    ({"isolation": "watch"}, 'eq .Values.isolation "driver"'),
    # In front of the next, within whose parts it is.
    ({"driver_root": ""}, ".Values.driverRoot"),
    ({"device_strategy": "envvar"}, 'has .Values.deviceStrategy (list "auto" "cdi")'),
    ({"selinux_type": ""}, ".Values.selinuxType"),
    ({"overuse": "report"}, 'eq .Values.overuse "evict"'),
    ({"preemption": False}, ".Values.preemption"),
    ({"scheduler_on_gpu_nodes": True}, "eq .Values.schedulerOnGpuNodes false"),
    ({"openshift": False}, ".Values.openshift"),
    ({"prometheus": ""}, ".Values.prometheus"),
    # In front of the next, as above.
    ({"dashboard_hosts": ()}, ".Values.dashboard.hostName"),
    ({"dashboard": False}, ".Values.dashboard.enabled"),
    # In front of the next, as above.
    ({"pod_monitors": False}, ".Values.metrics.podMonitor"),
    ({"metrics": False}, ".Values.metrics.enabled"),
    ({"pull_secrets": ()}, ".Values.imagePullSecrets"),
    ({"mutating": False}, '.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"'),
)


#: Fields of values that the back end DRA does not have.
_NEVER_BY_CLAIMS: Final = frozenset({"openshift", "overuse"})


@dataclass
class If:
    """A part that is there where the condition holds."""

    condition: str
    part: Any


def made(values: Values) -> list[Any]:
    """The objects with words; the Namespace is Helm's."""
    text = json.dumps([one for one in objects(values) if one["kind"] != "Namespace"])
    if values.by_claims:
        text = _with_unit(text)
    found: list[Any] = json.loads(text)
    for one in found:
        if one["kind"] == "ConfigMap" and one["metadata"]["namespace"] == FULL.namespace:
            one["data"] = dict.fromkeys(one["data"], "x-config")
        template = one.get("spec", {}).get("template", {})
        if "annotations" in template.get("metadata", {}):
            words = {ANNOTATION_SCHEDULER_CONFIG: "x-digest", ANNOTATION_SETTINGS: _SETTINGS_OF[one["metadata"]["name"]]}
            template["metadata"]["annotations"] = {name: words[name] for name in template["metadata"]["annotations"]}
        if "imagePullSecrets" in one:
            one["imagePullSecrets"] = "x-pull-secrets"
        if one["kind"] == "DaemonSet":
            template["spec"].update(tolerations="x-tolerations", nodeSelector="x-node-selector")
            template["spec"].update({"runtimeClassName": "x-runtime-class"} if "runtimeClassName" in template["spec"] else {})
        if one["kind"] == "Deployment" and one["metadata"]["name"] == SCHEDULER:
            template["spec"].update(tolerations="x-scheduler-tolerations", nodeSelector="x-scheduler-node-selector")
        for container in template.get("spec", {}).get("containers", ()):
            container.update({"resources": f"x-resources-{_RESOURCES[container['name']]}"} if container["name"] in _RESOURCES else {})
    return found


def _with_unit(text: str) -> str:
    """With words for the size of a unit, which is within an expression of the policy that makes claims. ValueError where it is not."""
    amount, suffix = UNIT_QUANTITIES[FULL.memory_unit]
    written = f"* {amount}) + '{suffix}'"
    if text.count(written) != 1:
        raise ValueError(f"found {written!r} {text.count(written)} times; expected it once")
    return text.replace(written, "* 64993) + 'x-suffix'")


def settings_of(role: str, made: Callable[[Values], str]) -> str:
    """The lines of a daemon's settings, with the values of the chart as expressions. role: the daemon's on hosts."""
    charts = {row.key: SETTINGS.get(row.chart, f".Values.{row.chart}") for row in DAEMONS[role].settings if row.chart}
    charts.update(_MADE)

    def settings(values: Values) -> list[str]:
        parts = (line.partition(": ") for line in made(values).splitlines())
        return [f"{key}: {{{{ {charts[key]} | toJson }}}}" if key in charts else f"{key}: {words(value)}" for key, _colon, value in parts]

    return "\n".join(map(_line, tree(settings)))


def absent(part: Any) -> bool:
    """Whether it is there only where a condition does not hold."""
    return isinstance(part, If) and part.condition.startswith("not ")


def plain(part: Any) -> Any:
    """Without conditions, as where each of them holds; what is there only where one does not hold is not."""
    if isinstance(part, If):
        return plain(part.part)
    if isinstance(part, dict):
        return {key: plain(value) for key, value in part.items() if not absent(value)}
    return [plain(one) for one in part] if isinstance(part, list) else part


def marked(full: Any, less: Any, condition: str) -> Any:
    """The part with what `less` lacks in the condition. ValueError where they differ in another way."""
    if isinstance(full, If):
        return full if absent(full) else If(full.condition, marked(full.part, less, condition))
    if isinstance(full, dict) and isinstance(less, dict):
        found = {
            key: value if absent(value) else marked(value, less[key], condition) if key in less else If(condition, value)
            for key, value in full.items()
        }
        return {**found, **{key: If(f"not ({condition})", value) for key, value in less.items() if key not in full}}
    if isinstance(full, list) and isinstance(less, list):
        if len(full) == len(less):
            return [marked(one, other, condition) for one, other in zip(full, less, strict=True)]
        left = list(less)
        parts = []
        for one in full:
            if left and plain(one) == left[0]:
                parts.append(one)
                left.pop(0)
            elif left and _identity(plain(one)) == _identity(left[0]) != ():
                parts.append(marked(one, left.pop(0), condition))
            else:
                parts.append(If(condition, one))
        if left:
            raise ValueError(f"{condition}: {json.dumps(left)[:200]} is nowhere else")
        return parts
    if plain(full) != less:
        raise ValueError(f"{condition}: {full!r} and {less!r}")
    return full


def _identity(part: Any) -> tuple[str, ...]:
    """Of an object of Kubernetes; of another part ()."""
    return (part["kind"], part["metadata"]["name"]) if isinstance(part, dict) and {"kind", "metadata"} <= part.keys() else ()


def scalar(value: Any) -> str:
    """As YAML has it; a word of ours as its expression."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value in PARTS:
        return f"{{{{ {PARTS[value]} }}}}"
    if isinstance(value, str) and value in WORDS:
        return f"{{{{ {WORDS[value]} | quote }}}}"
    return words(text.replace(_WRITERS, _RANGE))


def words(text: str) -> str:
    for word in sorted(WORDS, key=len, reverse=True):
        text = text.replace(word, f"{{{{ {WORDS[word]} }}}}")
    return text


def lines(part: Any, indent: int) -> list[str]:
    """A block of YAML."""
    pad = " " * indent
    found: list[str] = []
    pairs = part.items() if isinstance(part, dict) else ((None, one) for one in part)
    for key, value in pairs:
        condition = value.condition if isinstance(value, If) else ""
        inner = value.part if isinstance(value, If) else value
        while isinstance(inner, If):
            condition, inner = f"and ({condition}) ({inner.condition})", inner.part
        mark = f"{pad}{json.dumps(key)[1:-1]}:" if key is not None else f"{pad}-"
        block = inner and isinstance(inner, (dict, list))
        body = [mark, *lines(inner, indent + 2)] if block else [f"{mark} {scalar(inner)}"]
        found += [f"{{{{- if {condition} }}}}", *body, "{{- end }}"] if condition else body
    return found


def tree(make: Callable[[Values], list[Any]] = made, full: Values = FULL) -> list[Any]:
    """The objects with words and conditions, or the parts of another text."""
    found: Any = make(full)
    for change, condition in CONDITIONS:
        # Of the back end DRA some parts are never there.
        found = marked(found, make(replace(full, **change)), condition) if change.keys() - _NEVER_BY_CLAIMS or full is FULL else found
    return list(found)


def _documents(full: Values) -> str:
    documents = []
    for one in tree(full=full):
        condition, inner = "", one
        while isinstance(inner, If):
            condition, inner = f"and ({condition}) ({inner.condition})" if condition else inner.condition, inner.part
        text = "\n".join(["---", *lines(inner, 0)])
        documents.append(f"{{{{- if {condition} }}}}\n{text}\n{{{{- end }}}}" if condition else text)
    return "\n".join(documents)


def _rejections(found: Sequence[tuple[str, str]]) -> str:
    """Each condition with what is then said. An expression in it is printed."""
    made = []
    for condition, words in found:
        expression = re.search(r"\{\{ (.+?) \}\}", words)
        said = f"(printf {json.dumps(words.replace(expression[0], '%s'))} {expression[1]})" if expression else json.dumps(words)
        made.append(f"{{{{- if {condition} }}}}\n{{{{- fail {said} }}}}\n{{{{- end }}}}\n")
    return "".join(made)


def defined(name: str, text: str) -> str:
    """A template for others to include."""
    return f'{{{{- define "gpushare.{name}" -}}}}\n{text}\n{{{{ end -}}}}\n'


def _line(part: Any) -> str:
    """A line of a text, in its conditions."""
    return f"{{{{- if {part.condition} }}}}\n{_line(part.part)}\n{{{{- end }}}}" if isinstance(part, If) else str(part)


def templates() -> dict[str, str]:
    """Name to text."""
    header = (
        "{{- /*\nSPDX-License-Identifier: Apache-2.0\nCopyright: gpushare.kubernetes contributors\nMade by tools/manifests.py.\n*/ -}}\n"
    )
    config = words(json.dumps(workloads.scheduler_config(copy.deepcopy(FULL)), indent=2))
    config = re.sub(r'\n( +"preemptVerb": .*)', r"\n{{- if .Values.preemption }}\n\1\n{{- end }}", config)
    of_plugin = settings_of("device_plugin", workloads.plugin_settings)
    of_plugin += '\n{{- if eq .Values.backend "dra" }}\nbackend: "dra"\n{{- end }}'
    return {
        "_scheduler-config.tpl": header + defined("schedulerConfig", config),
        "_device-plugin-settings.tpl": header + defined("devicePluginSettings", of_plugin),
        "_dashboard-settings.tpl": header + defined("dashboardSettings", settings_of("dashboard", workloads.dashboard_settings)),
        "_extender-settings.tpl": header + defined("extenderSettings", settings_of("extender", workloads.extender_settings)),
        "objects.yaml": f'{header}{{{{- if eq .Values.backend "extender" }}}}\n{_REJECTED}{_rejections(_REJECTED_BY_EXTENDER)}'
        f"{_CLAIMS_LEFT}{_documents(FULL)}\n{{{{- end }}}}\n",
        "objects-dra.yaml": f'{header}{{{{- if eq .Values.backend "dra" }}}}\n{_rejections(_REJECTED_BY_DRA)}{_OTHER_DRIVERS}'
        f"{_SHARES_LEFT}{_documents(FULL_BY_CLAIMS)}\n{{{{- end }}}}\n",
    }
