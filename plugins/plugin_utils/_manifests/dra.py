# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the back end `dra`: Kubernetes' own scheduler places pods by claims, and admission makes the claims.

Pure. A limit of GPU memory in a pod becomes a claim of that name: `gpushare-m4-x2--is-a100` asks for 4 units on each of 2 GPUs that are
an A100. All pods of a namespace use the same template, with which nothing can be allocated; the controller of ResourceClaims makes each
pod's claim of it, and writes the name beside it. A second policy reads the name and makes the claim what it says. docs/project/dra.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...module_utils._cluster.names import ANNOTATION_SETTINGS, CLAIMS, DRA_OWN, LABEL_NODE, NAMESPACE, PLUGIN, PLUGINS_REGISTRY, TEMPLATE
from . import accounts, policies, workloads
from .policies import API, CLAIM_FINALIZER, CREATE, DELETE, FEW, SCHEDULER, UPDATE, Daemons, Json, list_of, must, policy, with_bindings
from .values import Values

#: Of ResourceSlices, of their devices' attributes, and of the class. A test compares the names with the runtime's.
DRIVER = DRA_OWN
CLASS = TEMPLATE
RESOURCE_API = "resource.k8s.io/v1"
_GROUP = "resource.k8s.io"
TAINT = f"{DRIVER}/unusable"
#: Accounts that make claims of templates; the second where kube-controller-manager has one account for all its controllers.
_CONTROLLERS = ("system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager")
MEMORY, GPUS, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"
_LABEL_GPUS = "aliyun.com/gpu-count"
_UNITS_OF_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
#: By which the controller of ResourceClaims says which entry of the pod a claim is for (api/resource/v1/types.go, v1.37.2).
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
#: Of a DNS label.
_MOST_NAME = 63
#: Containers of a pod that can ask for GPU memory, as with the extender; GPUs of a node.
_MOST_CONTAINERS, _MOST_GPUS = 64, 16
#: Claims of one pod that the device plugin prepares.
MOST_CLAIMS = 64
#: No pod needs a longer one: the claim's name holds less.
_MOST_RULE = 200
#: Annotation → how its part of the name begins.
_RULES = {
    "gpushare.request/models": "is",
    "gpushare.request/models-refused": "not",
    "gpushare.request/gpus": "on",
    "gpushare.request/gpus-refused": "off",
}
#: Whole GPUs fit each isolation.
_PARTS = {**_RULES, "gpushare.request/isolation": "by"}
#: Annotation that kube-scheduler cannot keep → the reason.
_UNKNOWN_TO_CLAIMS = {
    "gpushare.request/same-gpu-as": "a claim knows no other pods",
    "gpushare.request/not-with": "a claim knows no other pods",
    "gpushare.request/placement": "kube-scheduler takes the first GPU that fits",
    "gpushare.request/links": "a claim knows no links between GPUs",
}
#: Names of GPU memory in a ResourceQuota: the API server takes each, and counts nothing by it.
_UNCOUNTED = (MEMORY, f"requests.{MEMORY}", f"limits.{MEMORY}", f"{CLASS}.deviceclass.resource.k8s.io/memory")
#: The name that counts: GPUs of claims, whatever they have of each.
_SHARES = f"{CLASS}.deviceclass.resource.k8s.io/devices"
_NAME = r"^gpushare-m[1-9][0-9]{0,6}(-x[1-9][0-9]?)?(--((is|not|on|off)-[a-z0-9]+(-[a-z0-9]+)*|by-driver))*$"
_CONTAINERS = "(object.spec.containers + object.spec.?initContainers.orValue([]))"
#: Of a pod as it was: one from before this back end has limits, and the API server takes no claims for it any more.
_OLD_CONTAINERS = _CONTAINERS.replace("object.", "oldObject.")
_IS_NO_MIRROR = "!object.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue()"
#: Kubernetes' quantity of one unit, by the unit's name: how many of which.
UNIT_QUANTITIES = {"GiB": (1, "Gi"), "MiB": (1, "Mi"), "64MiB": (64, "Mi"), "128MiB": (128, "Mi"), "256MiB": (256, "Mi")}


def objects(values: Values) -> list[Json]:
    """Everything that gpushare is in a cluster with this back end: no scheduler, and nothing on the control plane."""
    space = [] if values.namespace == NAMESPACE else [workloads.namespace(values)]
    rights = [
        item
        for account, rules in ((PLUGIN, _plugin_rules()), (CLAIMS, _claims_rules()))
        for item in (accounts.service_account(account, values.namespace), *accounts.granted(account, rules, values.namespace))
    ]
    rights += accounts.dashboard_in_cluster(values.namespace, by_claims=True) if values.dashboard else []
    first, last = workloads.around(values)
    running = [*first, deployment(values), daemon_set(values), *last]
    return [*space, *_own_policies(values), *admission(values.memory_unit), *rights, *running]


def device_class() -> Json:
    """A request of this class without a capacity takes a whole GPU: so Kubernetes itself translates limits of whole GPUs."""
    spec = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}], "extendedResourceName": GPUS}
    return {"apiVersion": RESOURCE_API, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": spec}


def admission(memory_unit: str) -> list[Json]:
    """The policies that turn limits into claims; that of the claims first, since a claim is never changed afterwards."""
    return [
        *_mutating("claims", _claims(memory_unit)),
        device_class(),
        *_mutating("requests", _requests()),
        *_rejected(),
        *_budgets(),
        *_owned(),
        *_tolerations(),
    ]


def _mutating(name: str, spec: Json) -> list[Json]:
    kind, name = "MutatingAdmissionPolicy", f"gpushare-dra-{name}"
    bound = {"apiVersion": API, "kind": f"{kind}Binding", "metadata": {"name": name}, "spec": {"policyName": name}}
    return [{"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}, bound]


def _rule(group: str, resource: str, operations: Sequence[str]) -> Json:
    return {"resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": list(operations), "resources": [resource]}]}


# The part of claims.


def _claims(memory_unit: str) -> Json:
    amount, suffix = UNIT_QUANTITIES[memory_unit]
    here = f"object.metadata.annotations['{_POD_CLAIM_NAME}']"
    request = "/spec/devices/requests/0/exactly"

    def words(tag: str, word: str, joined: str) -> str:
        """The expression in a claim for the parts of the name with this tag, as CEL that writes CEL; '' without such parts."""
        of_tag = f"variables.parts.filter(p, p.startsWith('{tag}-')).map(p, p.substring({len(tag) + 1}))"
        return f"({of_tag}.size() == 0 ? [] : ['(' + {of_tag}.map(w, {word}).join(' {joined} ') + ')'])"

    def named(negated: str) -> str:
        return f'"{negated}g.words.contains(\'-" + w + "-\')"'

    def has_uuid(operator: str) -> str:
        return f'"g.uuid.lowerAscii() {operator} \'" + w + "\'"'

    rules = [
        words("is", named(""), "||"),
        words("not", named("!"), "&&"),
        words("on", has_uuid("=="), "||"),
        words("off", has_uuid("!="), "&&"),
        words("by", "\"g.?isolation.orValue('') == '\" + w + \"'\"", "&&"),
    ]
    selector = f"{request}/selectors"
    written = f"\"cel.bind(g, device.attributes['{DRIVER}'], \" + variables.rules.join(' && ') + ')'"
    patches = [
        f"JSONPatch{{op: 'replace', path: '{request}/count', value: variables.gpus}}",
        f"JSONPatch{{op: 'add', path: '{request}/capacity', value: {{'requests': {{'memory': variables.memory}}}}}}",
        # kube-scheduler evaluates each selector for each GPU that it tries.
        f"variables.rules.size() == 0 ? JSONPatch{{op: 'remove', path: '{selector}'}} "
        f": JSONPatch{{op: 'replace', path: '{selector}/0/cel/expression', value: {written}}}",
    ]
    # A device can be allocated several times, also for one request.
    distinct = f"{{'distinctAttribute': '{DRIVER}/uuid'}}"
    several = f"(variables.gpus > 1 ? [JSONPatch{{op: 'add', path: '/spec/devices/constraints', value: [{distinct}]}}] : [])"
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": _rule(_GROUP, "resourceclaims", [CREATE]),
        "matchConditions": [
            {
                "name": "is-of-the-template",
                "expression": "object.spec.devices.?requests.orValue([]).size() == 1 "
                f"&& object.spec.devices.requests[0].?exactly.?deviceClassName.orValue('') == '{CLASS}' "
                "&& object.spec.devices.requests[0].?exactly.?selectors.orValue([]).size() == 1 "
                "&& object.spec.devices.requests[0].exactly.selectors[0].?cel.?expression.orValue('') == 'false'",
            },
            {
                "name": "has-a-name-of-ours",
                "expression": f"object.metadata.?annotations[?'{_POD_CLAIM_NAME}'].orValue('').size() <= {_MOST_NAME} "
                f"&& object.metadata.?annotations[?'{_POD_CLAIM_NAME}'].orValue('').matches('{_NAME}')",
            },
        ],
        "variables": [
            {"name": "parts", "expression": f"{here}.split('--')"},
            {"name": "sizes", "expression": "variables.parts[0].substring('gpushare-m'.size()).split('-x')"},
            {"name": "gpus", "expression": "variables.sizes.size() > 1 ? int(variables.sizes[1]) : 1"},
            {"name": "memory", "expression": f"string(int(variables.sizes[0]) * {amount}) + '{suffix}'"},
            {"name": "rules", "expression": " + ".join(rules)},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": f"[{', '.join(patches)}] + {several}"}}],
    }


# The part of pods.


def _limit(container: str, name: str) -> str:
    return f"{container}.?resources.?limits[?'{name}'].orValue('0')"


def _asks(name: str, containers: str = _CONTAINERS) -> str:
    return f"{containers}.exists(c, {_limit('c', name)} != '0')"


def _rule_part(annotation: str, tag: str) -> str:
    value = f"object.metadata.?annotations[?'{annotation}'].orValue('')"
    part = f"'--{tag}-' + w.lowerAscii().findAll('[a-z0-9]+').join('-')"
    # A name that is too long for a claim is what `ok` rejects.
    return f"({value} == '' ? '' : {value}.size() > {_MOST_RULE} ? '{'-' * (_MOST_NAME + 1)}' : {value}.split(',').map(w, {part}).join(''))"


def _amounts(where: str) -> str:
    """The units of each container; 0 for an amount that is not whole, which the API server rejects itself."""
    limit = _limit("c", MEMORY)
    return f"{where}.map(c, isQuantity({limit}) && quantity({limit}).isInteger() ? quantity({limit}).asInteger() : 0)"


#: Conditions have no variables, so both policies have these.
_VARIABLES: tuple[Json, ...] = (
    {"name": "inits", "expression": "object.spec.?initContainers.orValue([])"},
    {"name": "of_apps", "expression": _amounts("object.spec.containers")},
    {"name": "of_inits", "expression": _amounts("variables.inits")},
    {
        "name": "of_sidecars",
        "expression": "variables.inits.transformList(i, c, c.?restartPolicy.orValue('') == 'Always' ? variables.of_inits[i] : 0)",
    },
    # An init container runs with the sidecars that were started before it.
    {
        "name": "peaks",
        "expression": "variables.inits.transformList(i, c, c.?restartPolicy.orValue('') == 'Always' ? 0 "
        ": variables.of_inits[i] + variables.of_sidecars.slice(0, i).sum())",
    },
    {"name": "units", "expression": "([variables.of_apps.sum() + variables.of_sidecars.sum()] + variables.peaks).max()"},
    {
        "name": "gpus",
        "expression": f"object.metadata.?labels[?'{_LABEL_GPUS}'].orValue('1').matches('^[1-9][0-9]?$') "
        f"? int(object.metadata.?labels[?'{_LABEL_GPUS}'].orValue('1')) : 0",
    },
    {
        "name": "even",
        "expression": f"variables.gpus >= 1 && variables.gpus <= {_MOST_GPUS} && variables.units % variables.gpus == 0 "
        "&& (variables.of_apps + variables.of_inits).all(n, n % variables.gpus == 0)",
    },
    {
        "name": "name",
        "expression": "!variables.even || variables.units <= 0 ? '' : 'gpushare-m' + string(variables.units / variables.gpus) "
        f"+ (variables.gpus > 1 ? '-x' + string(variables.gpus) : '') + {' + '.join(_rule_part(*rule) for rule in _PARTS.items())}",
    },
    # A list that is walked below for each container costs the square of its number.
    {
        "name": "few",
        "expression": f"object.spec.?resourceClaims.orValue([]).size() <= {FEW} && {_CONTAINERS}.all(c, "
        f"c.?env.orValue([]).size() <= {FEW} && c.?resources.?claims.orValue([]).size() <= {FEW})",
    },
    {"name": "named", "expression": f"variables.few && variables.name.size() <= {_MOST_NAME} && variables.name.matches('{_NAME}')"},
)


def _requests() -> Json:
    entry = f"{{'name': variables.name, 'resourceClaimTemplateName': '{TEMPLATE}'}}"
    claims = (
        "(has(object.spec.resourceClaims) ? [] : [JSONPatch{op: 'add', path: '/spec/resourceClaims', value: []}])"
        " + (object.spec.?resourceClaims.orValue([]).exists(r, r.name == variables.name) ? [] "
        f": [JSONPatch{{op: 'add', path: '/spec/resourceClaims/-', value: {entry}}}])"
    )
    scheduler = (
        f"(object.spec.?schedulerName.orValue('') == '{SCHEDULER}' "
        f"&& (oldObject == null || oldObject.spec.?schedulerName.orValue('') != '{SCHEDULER}') "
        "? [JSONPatch{op: 'replace', path: '/spec/schedulerName', value: 'default-scheduler'}] : [])"
    )

    def of_containers(field: str, where: str, amounts: str) -> str:
        at = f"'/spec/{field}/' + string(i)"
        key = MEMORY.replace("/", "~1")
        patches = [
            f"[JSONPatch{{op: 'remove', path: {at} + '/resources/limits/{key}'}}]",
            f"(c.?resources.?requests[?'{MEMORY}'].hasValue() "
            f"? [JSONPatch{{op: 'remove', path: {at} + '/resources/requests/{key}'}}] : [])",
            f"(has(c.resources.claims) ? [] : [JSONPatch{{op: 'add', path: {at} + '/resources/claims', value: []}}])",
            "(c.?resources.?claims.orValue([]).exists(r, r.name == variables.name) ? [] "
            f": [JSONPatch{{op: 'add', path: {at} + '/resources/claims/-', value: {{'name': variables.name}}}}])",
            f"(has(c.env) ? [] : [JSONPatch{{op: 'add', path: {at} + '/env', value: []}}])",
            f"(c.?env.orValue([]).exists(e, e.name == '{_UNITS_OF_CONTAINER}') ? [] : [JSONPatch{{op: 'add', path: {at} + '/env/-', "
            f"value: {{'name': '{_UNITS_OF_CONTAINER}', 'value': string({amounts}[i])}}}}])",
        ]
        return f"{where}.transformList(i, c, {amounts}[i] > 0, {' + '.join(patches)}).flatten()"

    every = [
        claims,
        of_containers("containers", "object.spec.containers", "variables.of_apps"),
        of_containers("initContainers", "variables.inits", "variables.of_inits"),
    ]
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        # Also changes: who applies a pod's manifest again sends its limits again.
        "matchConstraints": _rule("", "pods", [CREATE, UPDATE]),
        "matchConditions": [
            {"name": "asks-for-gpus", "expression": f"{_CONTAINERS}.size() <= {_MOST_CONTAINERS} && ({_asks(MEMORY)} || {_asks(GPUS)})"},
            {
                "name": "had-no-limits",
                "expression": f"oldObject == null || ({_OLD_CONTAINERS}.size() <= {_MOST_CONTAINERS} && !{_asks(MEMORY, _OLD_CONTAINERS)})",
            },
            {"name": "is-no-mirror", "expression": _IS_NO_MIRROR},
        ],
        "variables": [*_VARIABLES, {"name": "memory_alone", "expression": f"!{_asks(GPUS)} && !{_asks(CORE)}"}],
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {"expression": f"{scheduler} + (variables.memory_alone && variables.named ? {' + '.join(every)} : [])"},
            }
        ],
    }


def _rejected() -> list[Json]:
    """The words for every pod that asks for GPUs in a way that no claim can say. It sees the pod as the other policy has left it."""
    annotations = "object.metadata.?annotations.orValue({})"
    few = f"{_CONTAINERS}.size() <= {FEW}"
    claims = "object.spec.?resourceClaims.orValue([])"
    ours = f"{claims}.filter(r, r.?resourceClaimTemplateName.orValue('') == '{TEMPLATE}')"
    many = f"{claims}.size() > {FEW}"
    known = list_of([*_PARTS, *_UNKNOWN_TO_CLAIMS])
    # Admission refers to an entry of such a name as to the claim that it makes.
    named = f"{claims}.filter(r, r.name.matches('^gpushare-m[0-9]'))"
    own = f"write a ResourceClaimTemplate of the class {CLASS} yourself (docs/use/dra.md)"
    validations = [
        must(
            f"{_CONTAINERS}.size() <= {_MOST_CONTAINERS}",
            f"a pod that asks for GPUs (aliyun.com/*) has at most {_MOST_CONTAINERS} containers with the back end dra: use fewer",
        ),
        must(f"!({many})", f"a pod has at most {FEW} resourceClaims in this cluster, since gpushare reads each: use fewer"),
        must(f"{many} || {ours}.size() <= {MOST_CLAIMS}", f"a pod has at most {MOST_CLAIMS} claims of the template {TEMPLATE}: use fewer"),
        must(
            "!variables.asks_memory || variables.few",
            f"a container of a pod with GPUs has at most {FEW} variables and {FEW} claims with the back end dra: use envFrom",
        ),
        must(f"!{_asks(CORE)}", f"{CORE}: nothing divides the compute of a GPU with the back end dra: leave this limit out"),
        must(
            f"!({_asks(MEMORY)} && {_asks(GPUS)})",
            f"a pod asks for parts of GPUs ({MEMORY}) or for whole ones ({GPUS}), not for both: leave one of the limits out",
        ),
        must(
            f"!variables.asks_memory || (variables.gpus >= 1 && variables.gpus <= {_MOST_GPUS})",
            f"the label {_LABEL_GPUS} is the number of GPUs that share the memory: write a number from 1 to {_MOST_GPUS}",
        ),
        must(
            "!variables.asks_memory || variables.even",
            message_expression=f"'{MEMORY}: the amount of each container must be a multiple of the number of GPUs in the label "
            f"{_LABEL_GPUS}, which is ' + string(variables.gpus) + ': write other amounts, or leave the label out'",
        ),
        *(
            must(f"!('{name}' in {annotations})", f"annotation {name}: {why}, so the back end dra cannot keep it: leave it out")
            for name, why in _UNKNOWN_TO_CLAIMS.items()
        ),
        must(
            f"{annotations}.size() > {FEW} || {annotations}.all(k, !k.startsWith('gpushare.request/') || k in {known})",
            f"an annotation that begins with gpushare.request/ is not known: write one of {', '.join(_PARTS)}",
        ),
        must(
            f"!{_asks(GPUS)} || !{list_of([*_RULES])}.exists(k, k in {annotations})",
            f"{GPUS} with {', '.join(_RULES)}: the back end dra cannot choose whole GPUs by their model: {own}",
        ),
        must(
            "!variables.asks_memory || variables.named",
            message_expression=f"'the annotations {', '.join(_RULES)} must be lists of models or UUIDs, and gpushare.request/isolation "
            f"driver; together they make the claim\\'s name, which has at most {_MOST_NAME} characters and would be ' "
            f"+ variables.name.substring(0, variables.name.size() > 80 ? 80 : variables.name.size()) + ': name fewer, or {own}'",
        ),
        must("!variables.asks_memory", f"{MEMORY}: the amount must be a whole number, the same as limit and as request"),
        must(
            "object.spec.?nodeName.orValue('') == ''",
            "a pod with GPUs that names its node has no claim that kube-scheduler allocates: write spec.nodeSelector instead of nodeName",
        ),
        must(
            f"{many} || {named}.all(r, r.?resourceClaimTemplateName.orValue('') == '{TEMPLATE}')",
            f"names of claims that begin with gpushare-m and a digit are those of limits, whose claims are of the template {TEMPLATE}: "
            "write another name",
        ),
        must(
            f"{many} || {ours}.all(r, r.name.size() <= {_MOST_NAME} && r.name.matches('{_NAME}'))",
            f"a claim of the template {TEMPLATE} is named after its amount, as in gpushare-m4 for 4 units of one GPU: write that name, or "
            f"the limit {MEMORY}",
        ),
    ]
    asks = " || ".join(_asks(name) for name in (MEMORY, GPUS, CORE))
    conditions = {
        "has-to-do-with-gpus": f"!({few}) || {many} || {asks} || {ours}.size() + {named}.size() > 0",
        "is-no-mirror": _IS_NO_MIRROR,
    }
    asks_memory = {"name": "asks_memory", "expression": _asks(MEMORY)}
    return with_bindings([policy("dra-rejected", [CREATE], ["pods"], conditions, validations, [*_VARIABLES, asks_memory])])


def _budgets() -> list[Json]:
    """Limits of namespaces see pods as admission has left them: without limits of memory, so that nothing counts or all is forbidden."""
    named = f"'{MEMORY}' in"
    limited = " || ".join(f"{named} l.?{key}.orValue({{}})" for key in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"))
    validations = [
        must(
            f"!{list_of(_UNCOUNTED)}.exists(name, name in object.spec.?hard.orValue({{}}))",
            f"{MEMORY}: a ResourceQuota counts no GPU memory with the back end dra, since admission makes claims of limits, and "
            f"claims are counted without their memory: write {_SHARES}, the number of shares, or use the back end extender "
            "(docs/use/dra.md)",
        ),
        must(
            f"!object.spec.?limits.orValue([]).exists(l, {limited})",
            f"{MEMORY}: with such a LimitRange the back end dra runs no pod in its namespace, since admission makes claims of limits: "
            "leave it out, or use the back end extender (docs/use/dra.md)",
        ),
    ]
    return with_bindings([policy("dra-budgets", [CREATE, UPDATE], ["resourcequotas", "limitranges"], {}, validations)])


def _has_gpus(claim: str) -> str:
    return f"{claim}.?status.?allocation.?devices.?results.orValue([]).exists(r, r.driver == '{DRIVER}')"


def _owned() -> list[Json]:
    """A claim's memory is for the pod that owns it, from the claim's creation to its end.

    kubelet prepares a claim for its first pod, and tells the driver of no other: neither beside the first one nor after it, before it has
    ended that one. Such a pod would have no limit and no watch.
    """
    users, before = (f"{claim}.?status.?reservedFor.orValue([])" for claim in ("object", "oldObject"))
    owners, former = (f"{claim}.metadata.?ownerReferences.orValue([])" for claim in ("object", "oldObject"))
    alone = f"{owners}.size() == 1 && {owners}[0].apiVersion == 'v1' && {owners}[0].kind == 'Pod'"
    asks = f"s, s.?deviceClassName.orValue('') == '{CLASS}'"
    asks_ours = (
        f"object.spec.devices.?requests.orValue([]).exists(r, r.?exactly.?deviceClassName.orValue('') == '{CLASS}' "
        f"|| r.?firstAvailable.orValue([]).exists({asks}))"
    )
    lost = f"!('{CLAIM_FINALIZER}' in object.metadata.?finalizers.orValue([])) && '{CLAIM_FINALIZER}' in oldObject.metadata.?finalizers"
    status = f"authorizer.group('{_GROUP}').resource('resourceclaims').subresource('status')"
    deallocates = f"{status}.namespace(request.namespace).check('update').allowed()"
    why = (
        "a ResourceClaim with memory of GPUs is for the one pod that owns it: write resourceClaimTemplateName instead of resourceClaimName "
        "in the pods, so that each has a claim of its own (docs/use/dra.md)"
    )
    reserved = must(f"{users}.all(u, u in {before} || ({alone} && u.resource == 'pods' && u.uid == {owners}[0].uid))", why)
    made = must(f"request.operation != 'CREATE' || !{asks_ours} || ({alone})", why)
    kept = [
        must(
            f"request.operation == 'CREATE' || {owners} == {former} "
            f"|| ({owners}.size() <= {FEW} && {owners}.all(o, o.kind != 'Pod' || o.uid in variables.former))",
            "a pod owns a ResourceClaim from the claim's creation on: make another claim for another pod",
        ),
        # Without it a tenant deletes the claim under a pod that runs. Kubernetes' controller deallocates a claim first; kube-scheduler
        # takes the claim back that it made for whole GPUs, where it cannot bind the pod, and may deallocate, too.
        must(
            f"request.operation == 'CREATE' || !({lost}.orValue([])) || !{_has_gpus('oldObject')} || {deallocates}",
            f"a ResourceClaim that has GPUs keeps the finalizer {CLAIM_FINALIZER}: delete its pod, and Kubernetes deletes the claim",
        ),
    ]
    uids = {"name": "former", "expression": f"oldObject == null ? [] : {former}.map(o, o.uid)"}
    has_gpus = {"has-gpus": _has_gpus("object")}
    return with_bindings(
        [
            policy("dra-shared", [UPDATE], ["resourceclaims/status"], has_gpus, [reserved], group=_GROUP),
            policy("dra-owned", [CREATE, UPDATE], ["resourceclaims"], {}, [made, *kept], [uids], group=_GROUP),
        ]
    )


def _tolerations() -> list[Json]:
    """A claim that tolerates our taint has a GPU that is cordoned, or that processes of pods that are gone use."""
    tolerated = f"t, t.?key.orValue('') == '{TAINT}' || (t.?key.orValue('') == '' && s.?deviceClassName.orValue('') == '{CLASS}')"
    tolerates = f"s, s.?tolerations.orValue([]).exists({tolerated})"
    spec = "(request.resource.resource == 'resourceclaims' ? object.spec : object.spec.spec)"
    # It makes what templates ask for, which were judged when they were made.
    is_no_controller = f"!(request.userInfo.username in {list_of(_CONTROLLERS)})"
    may = (
        "!request.userInfo.username.startsWith('system:serviceaccount:') && authorizer.group('').resource('nodes').check('patch').allowed()"
    )
    validation = must(
        f"!{spec}.devices.?requests.orValue([]).exists(r, (has(r.exactly) ? [r.exactly] : []).exists({tolerates}) "
        f"|| r.?firstAvailable.orValue([]).exists({tolerates})) || ({may})",
        f"a GPU with the taint {TAINT} takes no pods: leave out tolerations of it, and of every taint (Exists without a key); "
        "only users who may patch nodes write them",
    )
    resources = ["resourceclaims", "resourceclaimtemplates"]
    return with_bindings(
        [policy("dra-tolerations", [CREATE], resources, {"is-no-controller": is_no_controller}, [validation], group=_GROUP)]
    )


# The daemons, and what their accounts may do.


def _own_policies(values: Values) -> list[Json]:
    """A daemon's token does nothing else than the daemon."""
    daemons = Daemons(
        namespace=values.namespace,
        binder=CLAIMS,
        per_node=False,
        accounts=(CLAIMS, PLUGIN),
        token_seconds=policies.POD_TOKEN_SECONDS,
        writers=tuple(values.writers),
    )
    spec = "(request.operation == 'DELETE' ? oldObject : object).spec"
    of_node = f"{spec}.?nodeName.orValue('')"
    kubelets = f"'system:nodes' in request.userInfo.?groups.orValue([]) && {spec}.driver == '{DRIVER}'"
    slices = policy(
        "dra-slices",
        [CREATE, UPDATE, DELETE],
        ["resourceslices"],
        {"is-a-device-plugin-or-a-kubelet": f"{daemons.is_plugin} || ({kubelets})"},
        [
            must(
                f"!({daemons.is_plugin}) || ({spec}.driver == '{DRIVER}' && {daemons.is_of(of_node)})",
                f"a device plugin of gpushare may write only the ResourceSlices of {DRIVER} of its own node",
            ),
            # In a pool of another node they would stand for that one's GPUs, or be a newer generation that takes their place.
            must(
                f"request.operation == 'DELETE' || object.spec.pool.name == {of_node}",
                f"the ResourceSlices of {DRIVER} are in the pool of their own node: set spec.pool.name to spec.nodeName",
            ),
        ],
        daemons.node,
        group=_GROUP,
    )
    request = "object.spec.spec.devices.requests[0]"
    nothing = " && ".join(f"object.metadata.?{name}.orValue({empty}).size() == 0" for name, empty in policies.EXTRAS)
    only = [f"{request}.exactly.?{name}.hasValue() == false" for name in ("adminAccess", "capacity", "tolerations")]
    same = [
        f"object.metadata.name == '{TEMPLATE}'",
        nothing,
        "!has(object.spec.metadata) || (object.spec.?metadata.?labels.orValue({}).size() == 0 "
        "&& object.spec.?metadata.?annotations.orValue({}).size() == 0)",
        "object.spec.spec.devices.?requests.orValue([]).size() == 1",
        "object.spec.spec.devices.?constraints.orValue([]).size() == 0 && object.spec.spec.devices.?config.orValue([]).size() == 0",
        f"{request}.name == 'gpu' && {request}.?exactly.?deviceClassName.orValue('') == '{CLASS}'",
        f"{request}.exactly.?selectors.orValue([]).size() == 1",
        f"{request}.exactly.selectors[0].?cel.?expression.orValue('') == 'false'",
        *only,
    ]
    templates = policy(
        "dra-templates",
        [CREATE, UPDATE, DELETE],
        ["resourceclaimtemplates"],
        {"is-gpushare-claims": f"request.userInfo.username == {daemons.binder_user}"},
        [
            must(
                "request.operation == 'CREATE' && " + " && ".join(f"({condition})" for condition in same),
                f"gpushare-claims may create one ResourceClaimTemplate in each namespace, {TEMPLATE}, for which nothing can be allocated",
            )
        ],
        group=_GROUP,
    )
    made = [slices, templates, policies.device_plugin(daemons, by_claims=True), policies.events(daemons), policies.tokens(daemons)]
    made += [policies.runtime_class(daemons)] if values.own_class else []
    return with_bindings(made)


def _plugin_rules() -> list[Json]:
    read = ["get", "list", "watch"]
    return [
        accounts.rule("", ["pods", "nodes"], read),
        accounts.rule("", ["nodes/status"], ["patch"]),
        accounts.rule("", ["events"], ["create", "patch"]),
        accounts.rule(_GROUP, ["resourceclaims"], ["get"]),
        accounts.rule(_GROUP, ["resourceslices"], [*read, "create", "patch", "delete"]),
    ]


def _claims_rules() -> list[Json]:
    return [
        accounts.rule("", ["namespaces"], ["list", "watch"]),
        accounts.rule(_GROUP, ["resourceclaimtemplates"], ["list", "watch", "create"]),
    ]


def deployment(values: Values) -> Json:
    """Two of the daemon that keeps the templates: it has no leader, since both do the same."""
    container = {
        "name": "claims",
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [f"{workloads.PROGRAMS}/{CLAIMS}"],
        "args": [f"--health-listen=0.0.0.0:{workloads.HEALTH_PORT}"],
        **workloads.environment(values),
        **workloads.probes(workloads.HEALTH_PORT),
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": dict(workloads.NOTHING),
    }
    off = {"matchExpressions": [{"key": LABEL_NODE, "operator": "DoesNotExist"}]}
    pod = {
        **workloads.own_account(CLAIMS),
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": dict(workloads.LINUX),
        "tolerations": [dict(workloads.CONTROL_PLANES)],
        "affinity": {
            **workloads.apart(CLAIMS),
            # Its token makes nothing that harms: where all nodes have GPUs it runs there, too.
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": off}]},
        },
        "securityContext": dict(workloads.AS_NOBODY),
        "containers": [container],
    }
    return workloads.deployment_of(CLAIMS, values, values.replicas, pod, {})


def daemon_set(values: Values) -> Json:
    """The device plugin, which registers with kubelet as a driver in another folder, and needs no folder of device plugins."""
    made = workloads.daemon_set(replace(values, device_strategy="cdi"))
    pod = made["spec"]["template"]["spec"]
    container = pod["containers"][0]
    made["spec"]["template"]["metadata"]["annotations"][ANNOTATION_SETTINGS] += 'backend: "dra"\n'
    folder = f"{values.kubelet_root}/{PLUGINS_REGISTRY}"
    registry = {"name": "plugins-registry", "hostPath": {"path": folder, "type": "Directory"}}
    mount = {"name": "plugins-registry", "mountPath": folder}
    pod["volumes"] = [*pod["volumes"], registry]
    container["volumeMounts"] = [*container["volumeMounts"], mount]
    return made
