# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The request of one pod, made once from the pod at the edge, with an error that names the field; and kubelet's reuse of device ids. Pure.

As in kubelet's device manager (pkg/kubelet/cm/devicemanager, Kubernetes 1.20 to 1.36): the ids of an ordinary init container
go into a pool; every later container takes from the pool first, in random order, and asks the device plugin only for what is
missing. The ids that a sidecar or an app container has taken leave the pool. Nothing goes back before the whole pod has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_CONTAINERS, MOST_UNITS, quote
from gpushare_runtime.core.constraints import NO_RULES, Context, Rules, parse_rules
from gpushare_runtime.core.quantity import parse_cpu, parse_quantity
from gpushare_runtime.errors import GpushareError

# Of a GPU's compute, as ACK shares it out.
CORE_STEP: Final = 5
# In bytes more memory than any machine has; of all containers of a pod together still a number that JSON can have, of 64 bits.
_LARGEST: Final = 2**56


class RequestError(GpushareError, ValueError):
    """A pod that asks in a way that cannot be meant; says which field, what was found and what to write."""


class Kind(Enum):
    """How a container runs: with the pod, before it, or from before it to its end."""

    APP = "containers"
    INIT = "initContainers"
    SIDECAR = "initContainers with restartPolicy Always"


@dataclass(frozen=True)
class ContainerRequest:
    """One container that asks for something of ours.

    index: its place in spec.containers (or spec.initContainers for INIT and SIDECAR).
    units: of `aliyun.com/gpu-mem`. whole_gpus: of `aliyun.com/gpu-count`.
    core: per cent of a GPU's compute. written: the memory quantity as the user wrote it.
    """

    kind: Kind
    index: int
    name: str
    units: int = 0
    whole_gpus: int = 0
    core: int = 0
    written: str = ""

    @property
    def key(self) -> int:
        """Its number in an allocation: i for spec.containers[i], as ACK has it; -1-i for spec.initContainers[i]."""
        return self.index if self.kind is Kind.APP else -1 - self.index

    @property
    def keeps(self) -> bool:
        """Whether it has its ids as long as the pod lives; later containers get those of an ordinary init container."""
        return self.kind is not Kind.INIT


@dataclass(frozen=True)
class Request:
    """The request of one pod; never empty.

    containers: in the order in which kubelet admits them, init containers first. gpus_per_pod: ACK's label, on how many
    GPUs of one node the memory is, in equal parts. context: of its pod, set only where rules about other pods matter.
    cpu: thousandths of a CPU that kube-scheduler reserves for the whole pod; whether they are free is its affair.
    """

    containers: tuple[ContainerRequest, ...]
    gpus_per_pod: int = 1
    rules: Rules = NO_RULES
    context: Context | None = None
    cpu: int = 0

    @cached_property
    def units(self) -> int:
        """Units of GPU memory that kubelet keeps for the running pod, init containers' included."""
        return kept((c.keeps, c.units) for c in self.containers)

    @cached_property
    def whole_gpus(self) -> int:
        """Whole GPUs that kubelet keeps for the running pod."""
        return kept((c.keeps, c.whole_gpus) for c in self.containers)

    @cached_property
    def core(self) -> int:
        """Per cent of a GPU's compute that kubelet keeps for the running pod."""
        return kept((c.keeps, c.core) for c in self.containers)

    @cached_property
    def clients(self) -> int:
        """Containers that use a GPU together: of those that run before others, one at a time."""
        lasting = sum(bool(c.units or c.whole_gpus) for c in self.containers if c.keeps)
        return max(1, lasting)

    @cached_property
    def gpus(self) -> int:
        """GPUs that the pod has at the same time."""
        return self.whole_gpus or self.gpus_per_pod

    @cached_property
    def per_gpu(self) -> int:
        """Units of each of the GPUs that its memory is on."""
        return -(-self.units // self.gpus_per_pod)

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is memory of one GPU, whichever and beside whomever."""
        return not self.whole_gpus and not self.core and self.gpus_per_pod == 1 and self.rules == NO_RULES and self.context is None

    @cached_property
    def by_likeness(self) -> bool:
        """Whether nodes of one `NodeLedger.likeness` are all the same to it."""
        models_alone = Rules(models=self.rules.models, models_refused=self.rules.models_refused, placement=self.rules.placement)
        return not self.core and self.context is None and self.rules == models_alone

    @cached_property
    def key(self) -> tuple[int, int, int, int, int, str]:
        """Equal for requests that fit on the same GPUs; small, and cheap to hash."""
        plain = self.rules == NO_RULES and self.context is None
        rules = "" if plain else blake2b(repr((self.rules, self.context)).encode(errors="replace"), digest_size=16).hexdigest()
        return self.units, self.whole_gpus, self.core, self.gpus_per_pod, self.clients, rules

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Equal for pods that may have each other's GPUs: nothing of names, and nothing of what users wrote to say the same."""
        sizes = tuple((c.kind, c.index, c.units, c.whole_gpus, c.core) for c in self.containers)
        return sizes, self.gpus_per_pod, self.rules

    @cached_property
    def unsupported(self) -> str | None:
        """Why such a pod cannot be kept on the right GPUs, or None. The filter rejects it; it is never half placed."""
        if self.gpus_per_pod == 1:
            return None
        pools = steps((c.keeps, c.units) for c in self.containers)
        for container, step in zip(self.containers, pools, strict=True):
            if step.at_random:
                return (
                    f"container {container.name!r} takes {container.units} of the {step.pool} units that an init container leaves, "
                    f"and kubelet picks them at random over the pod's {self.gpus_per_pod} GPUs; let it ask for {step.pool} or more, "
                    f"or the init container for at most {container.units}"
                )
        return None

    def in_context(self, context: Context | None) -> Request:
        """The same request by a pod in this context."""
        return self if self.context == context else replace(self, context=context)


def parse_request(pod: Mapping[str, Any], *, bound: bool = False) -> Request | None:
    """The request of a pod (a v1.Pod as JSON), None if it asks for nothing of ours. RequestError if it makes no sense.

    bound: it is on a node already, by any scheduler; what it has counts, also where it would be unschedulable now.
    """
    spec = pod.get("spec") or {}
    containers = tuple(islice(_containers(spec, bound), MOST_CONTAINERS + 1))
    if not containers:
        return None
    if len(containers) > MOST_CONTAINERS:
        raise RequestError(f"more than {MOST_CONTAINERS} containers of the pod ask for a part of a GPU; write at most so many")
    metadata = pod.get("metadata") or {}
    label = (metadata.get("labels") or {}).get(protocol.LABEL_GPUS_PER_POD)
    annotations = metadata.get("annotations") or {}
    if bound:
        gpus, rules = _as_far_as_readable(containers, label, annotations)
        return Request(containers, gpus, rules, cpu=_cpu(spec))
    if any(c.units or c.core for c in containers) and any(c.whole_gpus for c in containers):
        raise RequestError(
            f"the pod asks for {protocol.RESOURCE_MEMORY} and {protocol.RESOURCE_GPUS} at once: "
            f"memory of a shared GPU, or whole GPUs, but not both; remove one of them"
        )
    request = Request(containers, _gpus_per_pod(label, containers), _rules(annotations), cpu=_cpu(spec))
    _check_core(request)
    if request.whole_gpus and request.rules.same_gpu_as:
        raise RequestError(f"annotation {protocol.ASK_SAME_GPU_AS} with {protocol.RESOURCE_GPUS}: a whole GPU is not shared")
    return request


def _as_far_as_readable(containers: tuple[ContainerRequest, ...], label: object, annotations: Mapping[str, str]) -> tuple[int, Rules]:
    try:
        gpus = _gpus_per_pod(label, containers)
    except RequestError:
        gpus = 1
    try:
        return gpus, _rules(annotations)
    except RequestError:
        return gpus, NO_RULES


def _rules(annotations: Mapping[str, str]) -> Rules:
    try:
        return parse_rules(annotations)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _check_core(request: Request) -> None:
    if not request.core:
        return
    for container in request.containers:
        if not container.units:
            raise RequestError(
                f"container {container.name!r} asks for {protocol.RESOURCE_CORE} without {protocol.RESOURCE_MEMORY}; "
                "a share of a GPU's compute goes with a share of its memory: ask for both"
            )
        if container.core % CORE_STEP:
            raise RequestError(
                f"container {container.name!r}, {protocol.RESOURCE_CORE}: {container.core} is not a multiple of {CORE_STEP}; "
                f"write such as {max(CORE_STEP, container.core // CORE_STEP * CORE_STEP)}"
            )
    if request.core > 100:
        raise RequestError(f"{protocol.RESOURCE_CORE}: the pod asks for {request.core} per cent of one GPU; write at most 100 in total")
    if request.gpus_per_pod > 1:
        raise RequestError(
            f"{protocol.RESOURCE_CORE} with the pod label {protocol.LABEL_GPUS_PER_POD}: a share of compute is given on one GPU only; "
            "remove one of them"
        )


def _gpus_per_pod(label: object, containers: tuple[ContainerRequest, ...]) -> int:
    if label is None or not any(c.units for c in containers):
        return 1
    # No machine has a million GPUs.
    if not (isinstance(label, str) and label.isascii() and label.isdigit() and len(label) < 7 and int(label) >= 1):
        raise RequestError(f'the pod label {protocol.LABEL_GPUS_PER_POD} must be the number of GPUs, such as "2"; found {quote(label)}')
    gpus = int(label)
    for container in containers:
        if container.units % gpus:
            raise RequestError(
                f"container {container.name!r}, {protocol.RESOURCE_MEMORY}: {container.written} cannot be spread evenly over {gpus} GPUs "
                f"(pod label {protocol.LABEL_GPUS_PER_POD}); write a multiple of {gpus}, such as {-(-container.units // gpus) * gpus}"
            )
    return gpus


def _containers(spec: Mapping[str, Any], bound: bool) -> Iterator[ContainerRequest]:
    for kind, index, container in _all_containers(spec):
        yield from _container(kind, index, container, bound)


def _all_containers(spec: Mapping[str, Any]) -> Iterator[tuple[Kind, int, Mapping[str, Any]]]:
    """In the order in which kubelet admits them, each with its place in its list."""
    for index, container in enumerate(spec.get("initContainers") or ()):
        yield Kind.SIDECAR if container.get("restartPolicy") == "Always" else Kind.INIT, index, container
    for index, container in enumerate(spec.get("containers") or ()):
        yield Kind.APP, index, container


def _cpu(spec: Mapping[str, Any]) -> int:
    """As kube-scheduler counts it. A value that is not a quantity counts nothing: the API server lets none pass."""
    whole_pod = _cpu_of(spec.get("resources"))
    cpu = whole_pod or kept(
        (kind is not Kind.INIT, _cpu_of(container.get("resources"))) for kind, place, container in _all_containers(spec)
    )
    return min(MOST_UNITS, cpu + _cpu_of({"requests": spec.get("overhead")}))


def _cpu_of(resources: Mapping[str, Any] | None) -> int:
    requests = (resources or {}).get("requests") or {}
    value = requests.get("cpu") if "cpu" in requests else ((resources or {}).get("limits") or {}).get("cpu")
    if value is None:
        return 0
    try:
        return parse_cpu(value, MOST_UNITS)
    except ValueError:
        return 0


def _container(kind: Kind, index: int, container: Mapping[str, Any], bound: bool) -> Iterator[ContainerRequest]:
    resources = container.get("resources")
    if not resources:
        return
    limits = resources.get("limits") or {}
    requests = resources.get("requests") or {}
    asked = {name: limits.get(name, requests.get(name)) for name in protocol.RESOURCES if name in limits or name in requests}
    name = str(container.get("name", ""))
    amounts = {resource: _amount(name, resource, value, bound) for resource, value in asked.items()}
    if any(amounts.values()):
        yield ContainerRequest(
            kind,
            index,
            name,
            units=amounts.get(protocol.RESOURCE_MEMORY, 0),
            whole_gpus=amounts.get(protocol.RESOURCE_GPUS, 0),
            core=amounts.get(protocol.RESOURCE_CORE, 0),
            written=str(asked.get(protocol.RESOURCE_MEMORY, "")),
        )


def _amount(container: str, resource: str, value: object, bound: bool) -> int:
    try:
        amount = parse_quantity(value)
    except ValueError as error:
        raise RequestError(f"container {container!r}, {resource}: {error}") from None
    if amount < 0:
        raise RequestError(f"container {container!r}, {resource}: {value} is negative; write how many it needs, such as 8")
    if bound:
        # Past every check, and perhaps more than JSON can write: more than any machine has is as good.
        return min(amount, MOST_UNITS)
    if amount > _LARGEST:
        raise RequestError(f"container {container!r}, {resource}: {value} is more than any machine has; write how many it needs, such as 8")
    return amount


@dataclass(frozen=True)
class ContainerTurn:
    """One container's turn, in ids. pool: what init containers left before it. reused: taken from there. new: asked for."""

    pool: int
    reused: int
    new: int

    @property
    def at_random(self) -> bool:
        """Whether kubelet picks from the pool at random: it holds more than this container takes."""
        return 0 < self.reused < self.pool


def steps(asks: Iterable[tuple[bool, int]]) -> Iterator[ContainerTurn]:
    """asks: (whether it keeps its ids: sidecars and app containers do, how many) in the order in which kubelet admits."""
    pool = 0
    for keeps, amount in asks:
        reused = min(pool, amount)
        yield ContainerTurn(pool, reused, amount - reused)
        pool = pool - reused if keeps else max(pool, amount)


def kept(asks: Iterable[tuple[bool, int]]) -> int:
    """The ids that kubelet keeps for the pod as long as it lives; equals the pod's effective request in Kubernetes."""
    return sum(step.new for step in steps(asks))
