# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin with the back end `dra`: kubelet asks it for claims instead of ids, and everything else goes by ids made of them."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from pathlib import Path
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.node_report import ORPHANED, HeldEntry
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.core.unit_ids import unit_id
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.node_annotations import report
from gpushare_runtime.dra import driver, publisher
from gpushare_runtime.dra.claims import Claim, ClaimError
from gpushare_runtime.dra.driver import Gpus, KubeletDriver, Services
from gpushare_runtime.dra.prepared import Claims
from gpushare_runtime.dra.publisher import SlicePublisher
from gpushare_runtime.dra.slices import Closed
from gpushare_runtime.kube.client import KubeClient

log = logging.getLogger(__name__)

REQUIRED: Final = (driver.PART, publisher.PART)
"""The parts of the status without which no pod gets a GPU."""
# More than a GPU has units.
_SLOTS: Final = 1 << 32


class ClaimedIds:
    """The ids that pods have by their claims, in the place of kubelet's checkpoint. All containers of a pod are one."""

    def __init__(self, claims: Callable[[], Sequence[Claim]], path: Path) -> None:
        self.path = path
        self.entries: tuple[CheckpointEntry, ...] = ()
        self.problem = ""
        self._claims = claims

    def refresh(self) -> bool:
        """Returns whether `entries` is new."""
        entries = tuple(itertools.chain.from_iterable(map(self._of, self._claims())))
        changed = entries != self.entries
        self.entries = entries
        return changed

    def age(self) -> float:
        """Seconds since the claims were read."""
        return 0.0

    def _of(self, claim: Claim) -> list[CheckpointEntry]:
        ids = ids_of(claim)
        return [CheckpointEntry(pod, claim.uid, resource, frozenset(ids[resource])) for pod in claim.pods for resource in sorted(ids)]


def ids_of(claim: Claim) -> dict[str, list[str]]:
    """Resource → ids, one for each unit of memory, in the form of those that kubelet gives. They stay the same as long as the claim."""
    found: dict[str, list[str]] = {}
    for part in claim.parts:
        if part.whole:
            found.setdefault(protocol.RESOURCE_GPUS, []).append(part.uuid)
            continue
        digest = hashlib.sha256(f"{claim.uid} {part.request} {part.uuid}".encode()).digest()
        first = int.from_bytes(digest[:4], "big") * _SLOTS
        ids = [unit_id(part.uuid, first + slot) for slot in range(part.units)]
        found.setdefault(protocol.RESOURCE_MEMORY, []).extend(ids)
    return found


class DraBackend:
    """The parts that take the place of both registrations. before_start: limits the pod of these ids; AllocationRejected if that fails."""

    def __init__(
        self,
        client: KubeClient,
        name: str,
        node: NodeState,
        status: Status,
        folders: tuple[Path, Path, Path],
        before_start: Callable[[str, Sequence[str]], Awaitable[None]],
        *,
        unit: Unit,
        evicts: bool,
        alive: Callable[[Set[str]], Set[str]],
    ) -> None:
        """name: of the node. folders: for the state, of CDI specs, and kubelet's of plugins that register.

        unit: of claims' memory. evicts: of GPUs that fail. alive: as Processes.pods.
        """
        state, cdi_dir, registry = folders
        self._node = node
        self._before_start = before_start
        self.claims = Claims(client, name, state, cdi_dir, lambda: node.devices.inventory, unit, self._changed, self._left, alive)
        self.record = ClaimedIds(self.claims.claims, state / "claims.json")
        gpus = Gpus(lambda: node.devices.inventory, node.changes, lambda: node.devices.cdi_kind)
        self.driver = KubeletDriver(lambda socket, told: Services(self.claims, name, gpus, self._limit, socket, told), registry, status)
        self.slices = SlicePublisher(
            client, name, lambda: node.devices.settled, node.changes, status, lambda known: Closed(evicts, self._in_use(known))
        )
        # (pod UID, GPU UUID) → the pod's name.
        self._held: dict[tuple[str, str], str] = {}
        self._former: set[str] = set()
        """UIDs of pods whose claims were released when this process began: what they have is in use until it has searched for processes."""

    async def start(self) -> tuple[list[Any], list[Any]]:
        """(what serves kubelet, what runs below everything else), once the claims of the process before are read."""
        await in_thread(self.claims.load)
        # Also without any: pods that the process before knew may be gone, and their processes not.
        self.record.refresh()
        self._node.recorder.set_checkpoint(self.record.entries)
        self._former = {key.pod for key, usage in self._node.usage.table.items() if not usage.listed}
        return [self.driver.run()], [self.slices.reflector().run(), self.slices.run(), self.claims.run()]

    def _left(self) -> list[HeldEntry]:
        """The memory of pods by claims that kubelet has released: their processes may use it still, and kube-scheduler gives it away."""
        prepared = {pod for claim in self.claims.claims() for pod in claim.pods}
        return [entry for entry in report(self._node).entries if entry.why == ORPHANED and entry.uid not in prepared]

    def _in_use(self, known: Set[str]) -> frozenset[str]:
        """UUIDs of the GPUs on which pods that are gone have processes, or a pod without a claim at the API server.

        A pod that has ended as pods do is not among them at any moment.

        known: those that were among them. Such a one stays until no pod can have a process there: this process may be new, and has not
        searched for any yet. kubelet may have deleted the slices that say so.
        """
        alive = self._former.union(uid for uid, state in self._node.usage.states.items() if state.alive)
        held = {
            (entry.uid, entry.gpu): entry.pod
            for entry in (report(self._node).entries if alive or known else ())
            if entry.why == ORPHANED and (entry.uid in alive or entry.gpu in known)
        }
        for uid, gpu in held.keys() - self._held.keys():
            text = "processes of %s, which is gone, use memory of GPU %s: it takes no pods until they end"
            log.warning(text, held[uid, gpu] or uid, gpu, extra=about(held[uid, gpu], gpu=self._index(gpu)))
        for uid, gpu in self._held.keys() - held.keys():
            name = self._held[uid, gpu]
            log.info("processes of %s use no memory of GPU %s any more", name or uid, gpu, extra=about(name, gpu=self._index(gpu)))
        self._held = held
        self._former &= {uid for uid, _ in held}
        return self.claims.lost().union(gpu for _, gpu in held)

    def _index(self, uuid: str) -> object:
        gpu = self._node.devices.by_uuid.get(uuid)
        return uuid if gpu is None else gpu.index

    def _changed(self) -> None:
        if self.record.refresh():
            self._node.recorder.set_checkpoint(self.record.entries)
        self._node.changes.notify()

    async def _limit(self, claim: Claim) -> None:
        """kubelet has made the pod's control group before it asks."""
        for resource, ids in ids_of(claim).items():
            try:
                await self._before_start(resource, ids)
            except AllocationRejected as rejected:
                raise ClaimError(str(rejected)) from None
