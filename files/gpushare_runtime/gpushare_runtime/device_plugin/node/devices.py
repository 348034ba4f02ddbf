# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPUs of this node, their device ids, and which ids the plugin reports to kubelet as healthy. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Final

from gpushare_runtime.core import mps, protocol
from gpushare_runtime.core.inventory import HEALTHY, Gpu, Inventory
from gpushare_runtime.core.unit_ids import gpu_of, unit_id
from gpushare_runtime.device_plugin.node.cdi import CdiSpecs
from gpushare_runtime.device_plugin.node.id_usage import Usage

KUBELET_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""kubelet's gRPC client takes messages of up to so many."""
_DEVICE_BYTES: Final = 17
"""Of a device in kubelet's list beside its id, with the longer health value."""
MPS_UNKNOWN: Final = "the state of its MPS control daemon is not known yet"


class Devices:
    """inventory: None before the GPUs were read for the first time. strategy: how containers get GPUs, of protocol.STRATEGIES.

    driver: the version of the loaded one, "" before the GPUs were read. cdi_kind: of protocol.CDI_KINDS, for new containers. node_kind:
    who has prepared this node, of node_kind.py, "" where the installer has chosen the strategy.
    """

    def __init__(self, usage: Usage, strategy: str = protocol.STRATEGY_ENVIRONMENT) -> None:
        self.inventory: Inventory | None = None
        self.strategy = strategy
        self.cdi = CdiSpecs()
        self.cdi_kind = protocol.CDI_KIND
        self.node_kind = ""
        self.driver = ""
        self.one_is_silent = False
        """Whether a GPU does not answer of which not even the UUID is known: no GPU is said to be gone then."""
        self._usage = usage
        self._read: Inventory | None = None
        self._cordon: str | None = None
        self._isolation = ""
        self._mps: Mapping[str, str] = {}
        self._slots: dict[str, Gpu] = {}
        self._ids: dict[str, list[str]] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.inventory.gpus if self.inventory else ()

    @property
    def by_uuid(self) -> Mapping[str, Gpu]:
        return self.inventory.by_uuid if self.inventory else {}

    @property
    def settled(self) -> Inventory | None:
        """The inventory to publish: None until it is known what isolates pods and which GPUs are cordoned. A process that has just started
        would take back what the one before has published."""
        return self.inventory if self._isolation and self._cordon is not None else None

    def set_inventory(self, read: Inventory) -> bool:
        """Take the GPUs as read now. Returns whether they differ from before."""
        self._read = read
        self.cdi_kind = self.cdi.kind(self.answering, self.driver, self.cdi_kind)
        isolation = self._isolation
        core = 100 if isolation in protocol.ISOLATIONS_WITH_COMPUTE else 0
        clients = mps.MOST_CLIENTS if isolation == protocol.ISOLATION_MPS else 0
        gpus = tuple(map(self._offered, read.gpus))
        own = protocol.CDI_KIND_OWN if self.strategy == protocol.STRATEGY_CDI and self.cdi_kind == protocol.CDI_KIND_OWN else ""
        inventory = replace(
            read, gpus=gpus, core=core, strategy=self.strategy, isolation=isolation, clients=clients, cdi_kind=own, node_kind=self.node_kind
        )
        if inventory == self.inventory:
            return False
        self.inventory = inventory
        self._usage.gpus_by_index = inventory.by_index
        self._ids = {c.uuid: [unit_id(c.uuid, slot) for slot in range(c.units)] for c in inventory.gpus}
        self._slots = {device_id: gpu for gpu in inventory.gpus for device_id in self._ids[gpu.uuid]}
        self._usage.pods.changes.notify()
        return True

    def _offer_again(self) -> None:
        if self._read is not None:
            self.set_inventory(self._read)

    def _offered(self, gpu: Gpu) -> Gpu:
        cordoned = gpu.cordoned or is_cordoned(self._cordon or "", gpu)
        # The GPU's own failure says more.
        why = self._without_spec(gpu) or self._without_mps(gpu)
        return replace(gpu, cordoned=cordoned, health=why or HEALTHY if gpu.health == HEALTHY else gpu.health)

    def _without_mps(self, gpu: Gpu) -> str:
        if self._isolation != protocol.ISOLATION_MPS:
            return ""
        return self._mps.get(gpu.uuid, MPS_UNKNOWN)

    def awaiting_mps(self) -> bool:
        """Whether a GPU that answers is unusable only because of its MPS control daemon, which may be starting."""
        return any(self._without_mps(gpu) for gpu in self.answering)

    def set_mps(self, problems: Mapping[str, str]) -> None:
        """Take why the MPS control daemon of each GPU cannot be used now, by UUID; "" if it can."""
        self._mps = dict(problems)
        self._offer_again()

    def _without_spec(self, gpu: Gpu) -> str:
        return self.cdi.problem(gpu, self.driver, self.cdi_kind) if self.strategy == protocol.STRATEGY_CDI else ""

    def set_cdi(self, specs: CdiSpecs) -> None:
        """Take the CDI specs as read now."""
        self.cdi = specs
        self._offer_again()

    @property
    def answering(self) -> tuple[Gpu, ...]:
        """The GPUs that answer, whatever keeps pods from them besides."""
        return tuple(gpu for gpu in (self._read.gpus if self._read else ()) if gpu.health == HEALTHY)

    def unusable_specs(self) -> Mapping[str, str]:
        """UUID → why no container can get the GPU through CDI, of the GPUs that answer; {} with another strategy."""
        return {gpu.uuid: why for gpu in self.answering if (why := self._without_spec(gpu))}

    @property
    def isolation(self) -> str:
        """The isolation that keeps pods to their units now; "" if that is not known yet."""
        return self._isolation

    def set_isolation(self, isolation: str) -> None:
        """Take what keeps pods to their units now (protocol.ISOLATION_…)."""
        self._isolation = isolation
        self._offer_again()

    def set_cordon(self, text: str) -> None:
        """Take the GPUs that an administrator cordoned: NVML indexes or UUIDs, separated by commas; "all"."""
        self._cordon = text
        self._offer_again()

    def gpu_of(self, resource: str) -> Mapping[str, Gpu]:
        """Id → GPU, for all ids of the resource."""
        return self.by_uuid if resource == protocol.RESOURCE_GPUS else self._slots

    def ids_of(self, resource: str, gpu_uuid: str) -> list[str]:
        """The ids of one GPU, lowest slot first."""
        return [gpu_uuid] if resource == protocol.RESOURCE_GPUS else self._ids[gpu_uuid]

    def reported(self, resource: str) -> list[tuple[str, bool]]:
        """Every id of the resource, and whether the plugin reports it as healthy.

        Of an unusable GPU, only ids in use are healthy, until their pods release them. So kubelet's total falls by what this GPU
        cannot provide, and the ids in use do not reduce what the good GPUs provide. So are the ids in use of GPUs that are gone, as far
        as the list has room: kube-scheduler still counts them for their pods.
        """
        kept = self._used_of_unusable(resource)
        listed = [(i, gpu.usable or i in kept) for gpu in self.gpus for i in self.ids_of(resource, gpu.uuid)]
        room = KUBELET_MESSAGE_BYTES - sum(len(entry[0]) + _DEVICE_BYTES for entry in listed)
        for device_id in sorted(self._gone_ids(resource)):
            room -= len(device_id) + _DEVICE_BYTES
            if room < 0:
                break
            listed.append((device_id, True))
        return listed

    def reported_key(self, resource: str) -> Hashable:
        """Equal as long as `reported` is."""
        gpus = tuple((gpu.uuid, gpu.units, gpu.usable) for gpu in self.gpus)
        return gpus, self._gone_ids(resource).union(self._used_of_unusable(resource))

    def _gone_ids(self, resource: str) -> frozenset[str]:
        """The ids that kubelet counts for containers, of GPUs that are not in this node any more."""
        return frozenset().union(*self._usage.of_other_gpus(resource, self.by_uuid).values()) if self.inventory else frozenset()

    def gone(self) -> dict[str, set[str]]:
        """Pod UID → UUIDs of its GPUs that are not in this node any more."""
        found: dict[str, set[str]] = {}
        for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS) if self.inventory and not self.one_is_silent else ():
            for key, ids in self._usage.of_other_gpus(resource, self.by_uuid).items():
                found.setdefault(key.pod, set()).update(gpu_of(resource, i) for i in ids)
        return found

    def _used_of_unusable(self, resource: str) -> Collection[str]:
        unusable = {gpu.uuid for gpu in self.gpus if not gpu.usable}
        if not unusable:
            return ()
        # kubelet counts what it has freed as free, even if a process still uses it.
        freed = frozenset().union(*self._usage.still_in_use(resource).values())
        return (self._usage.ids_of(resource, unusable) & {i for uuid in unusable for i in self.ids_of(resource, uuid)}) - freed

    def users_key(self, gpu_uuid: str) -> Hashable:
        """Equal as long as the same pods use the GPU, and it remains usable or unusable."""
        gpu, users = self.by_uuid.get(gpu_uuid), self._usage.gpu_users()
        return gpu and gpu.usable, frozenset(users.memory.get(gpu_uuid, ())), users.whole.get(gpu_uuid)


def is_cordoned(text: str, gpu: Gpu) -> bool:
    """Whether the text of `gpushare/cordon` names the GPU."""
    words = {word.strip() for word in text.split(",")}
    return bool(words & {str(gpu.index), gpu.uuid, "all"})
