# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policies of who may write the annotations that say which GPU a pod has (on pods and their Bindings) and which GPUs a node has.

Pure. RBAC knows objects, not fields: these policies keep each daemon to what it is there for, and everybody else off. Other annotations
that begin with gpushare/ are wishes, and their pods' owners may write them.

The one place where this is decided, for daemons on the hosts and in the cluster; the modes differ in how a daemon is recognised (Daemons).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._cluster.names import DASHBOARD, LABEL_NODE, NAMESPACE, PLUGIN_ACCOUNT_PREFIX, RESOURCES, RUNTIME_CLASS

Json = dict[str, Any]

API = "admissionregistration.k8s.io/v1"
#: The name of the profile, the Lease, the account and the Deployment of the scheduler in the cluster.
SCHEDULER = "gpushare-scheduler"
PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"

# The annotations by who writes them and on what. They stand here only; a test compares them with core/protocol.py.
_ALLOCATION = (
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation",
)
_USE = "gpushare/use"
_OF_PLUGINS_ON_NODES = ("gpushare/gpus", "gpushare/held", "gpushare/evictions", _USE)
_OF_BINDER_ON_PODS = ("gpushare/requeued",)
# A variable of containers: as an annotation it belongs to no account.
_OF_NOBODY = ("ALIYUN_COM_GPU_MEM_CONTAINER",)
_OURS = (*_ALLOCATION, *_OF_PLUGINS_ON_NODES, *_OF_BINDER_ON_PODS, *_OF_NOBODY)

# Anybody may send an object with 256 KiB of annotations, which are 88,000, or with as many containers. all(), exists(), filter() and map()
# cost the square of their number: for each element, the API server's account of the costs searches all that was before it. So what comes
# from a request is found by its name or compared as a whole, and walked only where there are no more than these.
FEW = 250

#: The fields that daemons need on none of their own objects, and how CEL writes that there is none.
EXTRAS = (("labels", "{}"), ("annotations", "{}"), ("finalizers", "[]"), ("ownerReferences", "[]"))
#: Of an event's message. The daemons cut it after as many bytes, and the API server those of the newer kind after as many characters.
EVENT_CHARACTERS = 1024

_WRITES = ("pods", "pods/status", "nodes", "nodes/status")
_BINDS = ("pods", "pods/status", "pods/binding", "bindings", "nodes", "nodes/status")
CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
#: Above it, Kubernetes' own classes alone have their priorities: no pod of a user preempts a pod that has one.
SYSTEM_PRIORITY = 1000000000
#: Of what kube-scheduler says about a pod: why it waits, and that another one takes its place.
_OF_KUBE_SCHEDULER = ("PodScheduled", "DisruptionTarget")
#: By which kube-scheduler tells the controllers of volumes what it has chosen (component-helpers, storage/volume/helpers.go, v1.37.2).
_SELECTED_NODE, _BOUND_BY = "volume.kubernetes.io/selected-node", "pv.kubernetes.io/bound-by-controller"
#: That of ResourceClaims with devices (api/resource/v1/types.go, v1.37.2).
CLAIM_FINALIZER = "resource.kubernetes.io/delete-protection"
#: Of what kubelet mounts into a pod as its token.
POD_TOKEN_SECONDS = 3607
_ANNOTATIONS: tuple[Json, ...] = (
    {"name": "now", "expression": "object.metadata.?annotations.orValue({})"},
    {"name": "before", "expression": "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})"},
)
# The users who could take this policy away. ServiceAccounts are not among them, because many a controller may do everything, and makes
# what its tenants ask for.
_ADMINISTRATOR = (
    "!request.userInfo.username.startsWith('system:serviceaccount:') && authorizer.group('admissionregistration.k8s.io')"
    ".resource('validatingadmissionpolicies').name('gpushare-annotations') .check('delete').allowed()"
)
_SAME_METADATA = (
    "object.metadata.?labels == oldObject.metadata.?labels && object.metadata.?finalizers == oldObject.metadata.?finalizers "
    "&& object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
)
_NOTHING_ELSE = f"object.spec == oldObject.spec && object.?status == oldObject.?status && {_SAME_METADATA}"
_ITS_NODE = "request.resource.resource == 'nodes' ? oldObject.metadata.name : dyn(oldObject.spec).?nodeName.orValue('')"
# Since 1.35 the API server copies a Binding's labels onto the pod. It sets those of the node's zone and region itself.
_LABELS_OF_A_BINDING = (
    f"object.metadata.?labels.orValue({{}}).size() <= {FEW} "
    "&& object.metadata.?labels.orValue({}).all(k, k.startsWith('topology.kubernetes.io/'))"
)
_IS_A_BINDING = {
    "name": "binding",
    "expression": "request.?subResource.orValue('') == 'binding' || request.resource.resource == 'bindings'",
}
_BINDING_OR_STATUS = (
    "variables.binding || (request.operation == 'UPDATE' && request.resource.resource == 'pods' "
    "&& request.?subResource.orValue('') == 'status')"
)
_ALL_CONTAINERS = {"name": "containers", "expression": "object.spec.containers + object.spec.?initContainers.orValue([])"}
# In the cluster only: a pod with GPUs must have our scheduler, and no other pod may. One with more containers than are checked could ask
# for GPUs, too, and the device plugin would give them.
_NAMES_A_POD = "object.spec.?schedulerName.orValue('default-scheduler')"
# Conditions have no variables.
_CONTAINERS = f"({_ALL_CONTAINERS['expression']})"


@dataclass(frozen=True)
class Daemons:
    """How the policies recognise gpushare's daemons. Of accounts in `namespace`.

    binder: the account of who binds pods. accounts: those whose tokens are limited, beside the dashboard's. per_node: whether each device
    plugin has an account with its node's name (on the hosts). If not, all have one, and the claim of its bound token says the node, which
    kubelet's request for the token has put there.
    """

    namespace: str
    binder: str
    per_node: bool
    accounts: tuple[str, ...]
    token_seconds: int
    writers: Sequence[str] = ()

    @property
    def binder_user(self) -> str:
        return _text(f"system:serviceaccount:{self.namespace}:{self.binder}")

    @property
    def plugins_user(self) -> str:
        """The user name of the device plugins, or how it begins."""
        return _text(f"system:serviceaccount:{self.namespace}:{PLUGIN_ACCOUNT_PREFIX if self.per_node else PLUGIN}")

    @property
    def is_plugin(self) -> str:
        if self.per_node:
            return f"request.userInfo.username.startsWith({self.plugins_user})"
        return f"request.userInfo.username == {self.plugins_user}"

    @property
    def is_no_plugin(self) -> str:
        return f"!{self.is_plugin}" if self.per_node else f"request.userInfo.username != {self.plugins_user}"

    def is_of(self, node: str) -> str:
        """Whether the device plugin that asks is the one of this node. A token without the claim is of none."""
        if self.per_node:
            return f"request.userInfo.username == {self.plugins_user} + ({node})"
        return f"variables.node != '' && variables.node == ({node})"

    @property
    def node(self) -> list[Json]:
        """The variable that `is_of` needs."""
        claim = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')"
        return [] if self.per_node else [{"name": "node", "expression": claim}]


def on_hosts(writers: Sequence[str], token_seconds: int) -> list[Json]:
    """The policies for daemons that are services of the hosts."""
    daemons = Daemons(
        namespace=NAMESPACE,
        binder="gpushare-extender",
        per_node=True,
        accounts=("gpushare-extender",),
        token_seconds=max(int(token_seconds), 3600),
        writers=tuple(writers),
    )
    made = [device_plugin(daemons), _unhealthy(daemons), events(daemons), tokens(daemons), _placement(daemons), _extender(daemons)]
    return with_bindings([*made, _annotations(daemons)])


def in_cluster(
    namespace: str,
    writers: Sequence[str],
    mutating: bool,
    default_scheduler: bool = False,
    on_gpu_nodes: bool = False,
    own_class: bool = True,
) -> list[Json]:
    """The policies for daemons that are pods. mutating: whether the API server has MutatingAdmissionPolicy (1.36).

    default_scheduler: the extender is beside the cluster's own kube-scheduler, whose name pods have anyway. on_gpu_nodes: the scheduler's
    pods may run there. own_class: the device plugin's pods have our RuntimeClass.
    """
    binder = EXTENDER if default_scheduler else SCHEDULER
    daemons = Daemons(
        namespace=namespace,
        binder=binder,
        per_node=False,
        accounts=(binder, PLUGIN),
        token_seconds=POD_TOKEN_SECONDS,
        writers=tuple(writers),
    )
    made = [device_plugin(daemons), events(daemons), tokens(daemons), _placement(daemons)]
    made += [runtime_class(daemons)] if own_class else []
    if default_scheduler:
        return with_bindings([*made, _extender(daemons), _annotations(daemons)])
    made += [_scheduler(daemons, on_gpu_nodes), _scheduler_name(), _annotations(daemons), _gpu_nodes()]
    made += [_deletes(daemons), _leases(daemons), _volumes(daemons), _volume_claims(daemons), _resource_claims(daemons)]
    return [*with_bindings(made), *(_sets_the_name() if mutating else [])]


def with_bindings(policies: Sequence[Json]) -> list[Json]:
    return [*policies, *(_binding(made["metadata"]["name"]) for made in policies)]


def _binding(name: str) -> Json:
    spec = {"policyName": name, "validationActions": ["Deny"]}
    return {"apiVersion": API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": spec}


def policy(
    name: str,
    operations: Sequence[str],
    resources: Sequence[str],
    conditions: Mapping[str, str],
    validations: Sequence[Json],
    variables: Sequence[Json] = (),
    group: str = "",
) -> Json:
    """group: of the resources. One that is not the core has several versions at a time, which differ in nothing that is read here."""
    versions = ["*"] if group else ["v1"]
    rule = {"apiGroups": [group], "apiVersions": versions, "operations": list(operations), "resources": list(resources)}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        **({"matchConditions": [{"name": key, "expression": value} for key, value in conditions.items()]} if conditions else {}),
        **({"variables": list(variables)} if variables else {}),
        "validations": list(validations),
    }
    return {"apiVersion": API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": f"gpushare-{name}"}, "spec": spec}


def must(expression: str, message: str = "", message_expression: str = "") -> Json:
    said = {"messageExpression": message_expression} if message_expression else {"message": message}
    return {"expression": expression, **said, "reason": "Forbidden"}


def _text(words: str) -> str:
    """A name as CEL writes it. Of names that begin with a letter and have no quotes."""
    return f"'{words}'"


def list_of(names: Sequence[str]) -> str:
    """A list of texts in CEL, whatever is in them: its escapes are those of JSON."""
    return json.dumps(list(names))


def _those_of_others(own: str) -> list[Json]:
    """Whether the annotations that are not its own are as before (untouched); which are not, for the message (touched)."""
    return [
        {"name": "own", "expression": own},
        {"name": "few", "expression": f"variables.now.size() <= {FEW} && variables.before.size() <= {FEW}"},
        {
            "name": "untouched",
            "expression": "variables.few && variables.now.all(k, (k in variables.before && variables.before[k] == variables.now[k]) "
            "|| k in variables.own) && variables.before.all(k, k in variables.now || k in variables.own)",
        },
        {
            "name": "touched",
            "expression": f"!variables.few ? 'of an object that has more than {FEW}' : (variables.now.filter(k, !(k in variables.own) "
            "&& !(k in variables.before && variables.before[k] == variables.now[k])) + variables.before.filter(k, "
            "!(k in variables.own) && !(k in variables.now))).join(', ')",
        },
    ]


# Zero units ask for nothing.
_ASK_FOR_GPUS = (
    f"variables.containers.exists(c, {list_of(RESOURCES)}.exists(name, c.?resources.?limits[?name].orValue('0') != '0' "
    "|| c.?resources.?requests[?name].orValue('0') != '0'))"
)


def device_plugin(daemons: Daemons, *, by_claims: bool = False) -> Json:
    """by_claims: with the back end dra ResourceSlices say which GPUs there are, and claims who has them."""
    own = f"request.resource.resource == 'nodes' ? {list_of(_OF_PLUGINS_ON_NODES)} : {list_of(_ALLOCATION)}"
    own = list_of([_USE]) if by_claims else own
    return policy(
        "device-plugin",
        [CREATE, UPDATE],
        _WRITES,
        {"is-a-device-plugin": daemons.is_plugin},
        [
            must(
                f"request.operation == 'UPDATE' && {daemons.is_of(_ITS_NODE)}",
                "a device plugin of gpushare may change only its own node and the pods that are bound to it",
            ),
            must(
                "variables.untouched",
                message_expression="'a device plugin of gpushare may not change the annotations ' + variables.touched",
            ),
            must(_NOTHING_ELSE, "a device plugin of gpushare may change only annotations of gpushare"),
        ],
        [*daemons.node, *_ANNOTATIONS, *_those_of_others(own)],
    )


def _unhealthy(daemons: Daemons) -> Json:
    its_map = f"'unhealthy-gpu-' + request.userInfo.username.substring({daemons.plugins_user}.size())"
    return policy(
        "unhealthy",
        [CREATE, UPDATE],
        ["configmaps"],
        {"is-a-device-plugin": daemons.is_plugin},
        [
            must(
                f"object.metadata.name == {its_map} && object.?data.orValue({{}}).all(k, k == 'gpus') "
                "&& object.?binaryData.orValue({}).size() == 0",
                "a device plugin of gpushare may write one ConfigMap only, unhealthy-gpu-<its node>, with the key gpus",
            ),
            must(
                "oldObject == null ? "
                + " + ".join(f"object.metadata.?{name}.orValue({empty}).size()" for name, empty in EXTRAS)
                + " == 0 : "
                + " && ".join(f"object.metadata.?{name} == oldObject.metadata.?{name}" for name, _ in EXTRAS),
                "a device plugin of gpushare may write only the key gpus of its ConfigMap",
            ),
        ],
    )


def events(daemons: Daemons) -> Json:
    """RBAC lets a daemon send events in all namespaces, because pods are in all of them: here it is limited to its own name and subject."""
    # kube-scheduler calls itself by its profile's name, and sends events about more than pods.
    binders = ["gpushare-extender", *([] if daemons.per_node else [SCHEDULER])]

    def sent(event: str) -> str:
        """Whether the caller sent it. The two kinds of events have the sender in different fields, and people are shown either."""
        senders = f"[{event}.?source.component.orValue(''), {event}.?reportingComponent.orValue('')]"

        def named(names: Sequence[str]) -> str:
            return f"{senders}.exists(one, one != '') && {senders}.all(one, one == '' || one in {list_of(names)})"

        at_its_node = daemons.is_of(f"{event}.?source.host.orValue('')")
        return f"(request.userInfo.username == {daemons.binder_user} ? {named(binders)} : {named([PLUGIN])} && {at_its_node})"

    kind = "object.?involvedObject.kind.orValue('')"
    name = "object.?involvedObject.name.orValue('')"
    of_plugin = f"{kind} == 'Pod' || ({kind} == 'Node' && {daemons.is_of(name)})"
    of_binder = f"{kind} == 'Pod'" if daemons.per_node else "true"
    subject = f"request.userInfo.username == {daemons.binder_user} ? {of_binder} : {of_plugin}"
    extras = " && ".join(f"object.metadata.?{name}.orValue({empty}).size() == 0" for name, empty in EXTRAS)
    return policy(
        "events",
        [CREATE, UPDATE],
        ["events"],
        {"is-of-gpushare": f"request.userInfo.username == {daemons.binder_user} || {daemons.is_plugin}"},
        [
            must(f"oldObject == null || {sent('oldObject')}", "a daemon of gpushare may change only the events that it has sent itself"),
            must(sent("object"), "a daemon of gpushare may send events in its own name only"),
            must(
                f"oldObject == null ? ({subject}) : object.?involvedObject == oldObject.?involvedObject",
                "a daemon of gpushare may send events about pods only, and a device plugin about its own node",
            ),
            must(
                f"object.?message.orValue('').size() <= {EVENT_CHARACTERS} && {extras}",
                f"an event of gpushare has at most {EVENT_CHARACTERS} characters, and no labels, annotations, finalizers and owners",
            ),
        ],
        daemons.node,
    )


def tokens(daemons: Daemons) -> Json:
    named = f"request.name in [{', '.join(_text(name) for name in (*daemons.accounts, DASHBOARD))}]"
    if daemons.per_node:
        named = f"({named} || request.name.startsWith('{PLUGIN_ACCOUNT_PREFIX}'))"
    limit = daemons.token_seconds
    why = "gpushare_token_seconds" if daemons.per_node else "what kubelet asks for"
    return policy(
        "tokens",
        [CREATE],
        ["serviceaccounts/token"],
        {"is-for-gpushare": f"request.namespace == '{daemons.namespace}' && {named}"},
        [
            must(
                f"object.spec.?expirationSeconds.orValue(3600) <= {limit}",
                f"tokens of gpushare's accounts live {limit} seconds at most ({why})",
            )
        ],
    )


def _placement(daemons: Daemons) -> Json:
    return policy(
        "placement",
        [CREATE],
        ["pods"],
        {
            # kubelet makes the copies of static pods, and the API server lets it make no others.
            "is-no-kubelet-and-no-exception": "!('system:nodes' in request.userInfo.?groups.orValue([])) "
            f"&& !(request.userInfo.username in {list_of(daemons.writers)})",
            "is-on-a-node": "object.spec.?nodeName.orValue('') != '' "
            "|| 'kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({})",
        },
        [
            must(
                f"(variables.containers.size() <= {FEW} && !{_ASK_FOR_GPUS}) || ({_ADMINISTRATOR})",
                f"a pod that asks for GPU memory (aliyun.com/*) or has more than {FEW} containers is placed by the scheduler: leave out "
                "spec.nodeName and the annotation kubernetes.io/config.mirror; use nodeSelector or nodeAffinity",
            )
        ],
        [_ALL_CONTAINERS],
    )


def runtime_class(daemons: Daemons) -> Json:
    """The policy of our RuntimeClass. As NVIDIA configures its handler, a container gets every GPU that its environment names."""
    return policy(
        "runtime-class",
        [CREATE],
        ["pods"],
        {"has-it": f"object.spec.?runtimeClassName.orValue('') == {_text(RUNTIME_CLASS)}"},
        [
            must(
                f"request.namespace == {_text(daemons.namespace)}",
                f"the RuntimeClass {RUNTIME_CLASS} is for gpushare's own pods: leave spec.runtimeClassName out, and ask for GPU memory in "
                "resources.limits with aliyun.com/gpu-mem",
            )
        ],
    )


def _extender(daemons: Daemons) -> Json:
    own = f"variables.binding ? {list_of(_ALLOCATION)} : {list_of(_OF_BINDER_ON_PODS)}"
    return policy(
        "extender",
        [CREATE, UPDATE],
        _BINDS,
        {"is-the-extender": f"request.userInfo.username == {daemons.binder_user}"},
        [
            must(_BINDING_OR_STATUS, "the extender of gpushare may write Bindings and the status of pods only"),
            must(
                "variables.untouched",
                message_expression="'the extender of gpushare may set its annotations in Bindings and gpushare/requeued on pods, not the "
                "annotations ' + variables.touched",
            ),
            must(
                f"variables.binding ? {_LABELS_OF_A_BINDING} : {_NOTHING_ELSE}",
                "the extender of gpushare may change only annotations of gpushare",
            ),
        ],
        [_IS_A_BINDING, *_ANNOTATIONS, *_those_of_others(own)],
    )


def _scheduler(daemons: Daemons, on_gpu_nodes: bool) -> Json:
    """The account that kube-scheduler and the extender of one pod share.

    kube-scheduler writes why a pod waits and where it will go, also on pods with many annotations, which it leaves as they are. The fields
    of a status are those of its type, some twenty: they may be walked.

    A Binding does not have its pod. But it names the node, and a token that was stolen on a node binds no pod to that node: all pods with
    GPUs go to GPU nodes, where the scheduler is not.
    """
    own = f"variables.binding ? {list_of(_ALLOCATION)} : {list_of(_OF_BINDER_ON_PODS)}"
    status = (
        "dyn(object.?status.orValue({})).all(k, k in ['conditions', 'nominatedNodeName'] "
        "|| (k in variables.status && variables.status[k] == object.status[k])) "
        "&& variables.status.all(k, k in ['conditions', 'nominatedNodeName'] || k in dyn(object.?status.orValue({})))"
    )

    def others(status: str) -> str:
        return f"{status}.?conditions.orValue([]).filter(c, !(c.type in {list_of(_OF_KUBE_SCHEDULER)}))"

    now = "dyn(object.?status.orValue({}))"
    few = f"{now}.?conditions.orValue([]).size() <= {FEW} && variables.status.?conditions.orValue([]).size() <= {FEW}"
    conditions = f"variables.binding || ({few} && {others(now)} == {others('variables.status')})"
    elsewhere = must(
        "!variables.binding || (variables.node != '' && variables.node != object.target.name)",
        "the scheduler of gpushare may bind no pod to the node on which it runs itself",
    )
    return policy(
        "scheduler",
        [CREATE, UPDATE],
        _BINDS,
        {"is-the-scheduler": f"request.userInfo.username == {daemons.binder_user}"},
        [
            must(_BINDING_OR_STATUS, "the scheduler of gpushare may write Bindings and the status of pods only"),
            must(
                "variables.now == variables.before || variables.untouched",
                message_expression="'the scheduler of gpushare may set its annotations in Bindings and gpushare/requeued on pods, not the "
                "annotations ' + variables.touched",
            ),
            must(
                f"variables.binding ? {_LABELS_OF_A_BINDING} : object.spec == oldObject.spec && {_SAME_METADATA} && {status}",
                "the scheduler of gpushare may change only its annotations, status.conditions and status.nominatedNodeName of a pod",
            ),
            must(conditions, f"the scheduler of gpushare may set only the conditions {' and '.join(_OF_KUBE_SCHEDULER)} of a pod"),
            must(
                f"!variables.binding || {_text(_ALLOCATION[-1])} in variables.now",
                f"the scheduler of gpushare may bind only pods that get GPUs: its Bindings have the annotation {_ALLOCATION[-1]}",
            ),
            *([] if on_gpu_nodes else [elsewhere]),
        ],
        [
            *daemons.node,
            _IS_A_BINDING,
            *_ANNOTATIONS,
            {"name": "status", "expression": "oldObject == null ? dyn({}) : dyn(oldObject.?status.orValue({}))"},
            *_those_of_others(own),
        ],
    )


def _is_scheduler(daemons: Daemons) -> dict[str, str]:
    return {"is-the-scheduler": f"request.userInfo.username == {daemons.binder_user}"}


def _deletes(daemons: Daemons) -> Json:
    """Preemption deletes pods of any namespace and any scheduler that are on a node, with a priority that a user's pod may exceed; and pods
    of this scheduler on their way to one.
    """
    return policy(
        "scheduler-deletes",
        [DELETE],
        ["pods"],
        _is_scheduler(daemons),
        [
            must(
                f"(oldObject.spec.?nodeName.orValue('') != '' || oldObject.spec.?schedulerName.orValue('') == {_text(SCHEDULER)}) "
                f"&& oldObject.spec.?priority.orValue(0) < {SYSTEM_PRIORITY} "
                "&& !oldObject.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue()",
                "the scheduler of gpushare may delete only pods that preemption could choose: on a node, no static ones, with a priority "
                f"below {SYSTEM_PRIORITY}",
            )
        ],
    )


def _leases(daemons: Daemons) -> Json:
    return policy(
        "scheduler-leases",
        [CREATE],
        ["leases"],
        _is_scheduler(daemons),
        [
            must(
                f"object.metadata.name == {_text(SCHEDULER)} && object.metadata.namespace == {_text(daemons.namespace)}",
                f"the scheduler of gpushare may create one Lease only, {daemons.namespace}/{SCHEDULER}",
            )
        ],
        group="coordination.k8s.io",
    )


def _but(key: str) -> str:
    """The condition that no annotation but this one differs. Annotations are as many as anybody writes: up to so many they are walked."""
    few = f"variables.now.size() <= {FEW} && variables.before.size() <= {FEW}"
    kept = f"k == {_text(key)} || (k in variables.before && variables.before[k] == variables.now[k])"
    gone = f"k == {_text(key)} || k in variables.now"
    return f"(variables.now == variables.before || ({few} && variables.now.all(k, {kept}) && variables.before.all(k, {gone})))"


def _volumes(daemons: Daemons) -> Json:
    """A volume gets the claim of the pod that is placed."""
    fields = "dyn(object.spec).all(k, k == 'claimRef' || (k in dyn(oldObject.spec) && dyn(oldObject.spec)[k] == dyn(object.spec)[k]))"
    same = f"{fields} && dyn(oldObject.spec).all(k, k == 'claimRef' || k in dyn(object.spec)) && object.?status == oldObject.?status"
    # Its administrator may have named a claim, without its UID.
    named = " && ".join(f"object.spec.?claimRef.?{key} == oldObject.spec.?claimRef.?{key}" for key in ("name", "namespace"))
    claimed = (
        "!has(oldObject.spec.claimRef) || object.spec.?claimRef == oldObject.spec.?claimRef "
        f"|| (oldObject.spec.claimRef.?uid.orValue('') == '' && {named})"
    )
    return policy(
        "scheduler-volumes",
        [UPDATE],
        ["persistentvolumes", "persistentvolumes/status"],
        _is_scheduler(daemons),
        [
            must(
                f"{same} && ({claimed}) && {_but(_BOUND_BY)} && {_SAME_METADATA}",
                "the scheduler of gpushare may only give a PersistentVolume without a claim the claim of a pod",
            )
        ],
        _ANNOTATIONS,
    )


def _volume_claims(daemons: Daemons) -> Json:
    """A claim gets the node for which its volume is to be made."""
    return policy(
        "scheduler-volume-claims",
        [UPDATE],
        ["persistentvolumeclaims", "persistentvolumeclaims/status"],
        _is_scheduler(daemons),
        [
            must(
                f"object.spec == oldObject.spec && object.?status == oldObject.?status && {_but(_SELECTED_NODE)} && {_SAME_METADATA}",
                f"the scheduler of gpushare may change only the annotation {_SELECTED_NODE} of a PersistentVolumeClaim",
            )
        ],
        _ANNOTATIONS,
    )


def _resource_claims(daemons: Daemons) -> Json:
    """A claim of dynamic resource allocation gets devices and the pod that they are for."""
    changed = "['allocation', 'reservedFor', 'devices']"
    status, before = "dyn(object.?status.orValue({}))", "dyn(oldObject.?status.orValue({}))"
    metadata = (
        "object.metadata.?labels == oldObject.metadata.?labels && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
    )
    finalizers = (
        f"object.metadata.?finalizers.orValue([]).size() <= {FEW} && oldObject.metadata.?finalizers.orValue([]).size() <= {FEW} "
        f"&& object.metadata.?finalizers.orValue([]).filter(f, f != {_text(CLAIM_FINALIZER)}) "
        f"== oldObject.metadata.?finalizers.orValue([]).filter(f, f != {_text(CLAIM_FINALIZER)})"
    )
    return policy(
        "scheduler-resource-claims",
        [UPDATE],
        ["resourceclaims", "resourceclaims/status"],
        _is_scheduler(daemons),
        [
            must(
                f"object.spec == oldObject.spec && {status}.all(k, k in {changed} || (k in {before} && {before}[k] == {status}[k])) "
                f"&& {before}.all(k, k in {changed} || k in {status})",
                "the scheduler of gpushare may change only the allocation of a ResourceClaim, and the pods that it is reserved for",
            ),
            must(
                f"variables.now == variables.before && {metadata} && {finalizers}",
                f"the scheduler of gpushare may change only the finalizer {CLAIM_FINALIZER} of a ResourceClaim's metadata",
            ),
        ],
        _ANNOTATIONS,
        group="resource.k8s.io",
    )


def _gpu_nodes() -> Json:
    """A kubelet may write the labels of its node. A GPU node without ours would get a pod of the scheduler, and root there its token."""
    label = _text(LABEL_NODE)
    return policy(
        "gpu-nodes",
        [UPDATE],
        ["nodes", "nodes/status"],
        {
            "is-a-kubelet": "'system:nodes' in request.userInfo.?groups.orValue([])",
            "is-a-gpu-node": f"{label} in oldObject.metadata.?labels.orValue({{}})",
        },
        [
            must(
                f"{label} in object.metadata.?labels.orValue({{}})",
                f"a node may not remove its label {LABEL_NODE}: it keeps the scheduler of gpushare off GPU nodes",
            )
        ],
    )


def _annotations(daemons: Daemons) -> Json:
    return policy(
        "annotations",
        [CREATE, UPDATE],
        _BINDS,
        {
            "is-nobody-of-gpushare": f"request.userInfo.username != {daemons.binder_user} && {daemons.is_no_plugin} "
            f"&& !(request.userInfo.username in {list_of(daemons.writers)})",
            "has-annotations-of-gpushare": f"{list_of(_OURS)}.exists(k, k in object.metadata.?annotations.orValue({{}}) "
            "|| (oldObject != null && k in oldObject.metadata.?annotations.orValue({})))",
        },
        [
            must(
                f"variables.changed.size() == 0 || ({_ADMINISTRATOR})",
                message_expression="'the annotations ' + variables.changed.join(', ') + ' say which GPU memory is whose: only gpushare "
                "sets, changes and removes them, not ' + request.userInfo.username + '. Leave them out; ask for memory in "
                "resources.limits with aliyun.com/gpu-mem'",
            )
        ],
        [
            *_ANNOTATIONS,
            {
                "name": "changed",
                "expression": f"{list_of(_OURS)}.filter(k, (k in variables.now) != (k in variables.before) "
                "|| (k in variables.now && variables.now[k] != variables.before[k]))",
            },
        ],
    )


def _scheduler_name() -> Json:
    return policy(
        "scheduler-name",
        [CREATE],
        ["pods"],
        {},
        [
            must(
                f"variables.containers.size() <= {FEW}",
                f"a pod has at most {FEW} containers in this cluster, since gpushare reads each for GPU memory (aliyun.com/*)",
            ),
            must(
                "variables.ours || !variables.asks",
                "a pod that asks for GPU memory (aliyun.com/*) is placed by gpushare's own scheduler in this cluster: write "
                f"spec.schedulerName: {SCHEDULER}",
            ),
            must(
                f"!variables.ours || variables.asks || variables.containers.size() > {FEW}",
                f"{SCHEDULER} places only pods that ask for GPU memory (aliyun.com/*): leave spec.schedulerName out",
            ),
        ],
        [
            _ALL_CONTAINERS,
            {"name": "ours", "expression": f"{_NAMES_A_POD} == '{SCHEDULER}'"},
            {"name": "asks", "expression": f"variables.containers.size() <= {FEW} && {_ASK_FOR_GPUS}"},
        ],
    )


def closed() -> list[Json]:
    """In the place of `_scheduler_name`, for the moment in which no scheduler serves pods with GPUs. Controllers try again."""
    return with_bindings(
        [
            policy(
                "scheduler-name",
                [CREATE],
                ["pods"],
                # There the role scheduler verifies by a pod that kube-scheduler asks the extender.
                {"is-not-of-the-system": f"request.namespace != '{NAMESPACE}'"},
                [
                    must(
                        f"variables.containers.size() <= {FEW} && !{_ASK_FOR_GPUS}",
                        "gpushare gets another scheduler at this moment: create pods that ask for GPU memory (aliyun.com/*) in a minute",
                    )
                ],
                [_ALL_CONTAINERS],
            )
        ]
    )


def _sets_the_name() -> list[Json]:
    """Old manifests run unchanged: a pod that names no scheduler gets ours. One that names another is told."""
    name = "gpushare-scheduler-name"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": [CREATE], "resources": ["pods"]}
    patch = f"Object{{spec: Object.spec{{schedulerName: '{SCHEDULER}'}}}}"
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "names-no-scheduler", "expression": f"{_NAMES_A_POD} == 'default-scheduler'"},
            {"name": "asks-for-gpus", "expression": _ASK_IN_ONE},
        ],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": patch}}],
    }
    kind = "MutatingAdmissionPolicy"
    binding = {"apiVersion": API, "kind": f"{kind}Binding", "metadata": {"name": name}, "spec": {"policyName": name}}
    return [{"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}, binding]


_ASK_IN_ONE = f"{_CONTAINERS}.size() <= {FEW} && {_ASK_FOR_GPUS.replace('variables.containers', _CONTAINERS)}"
