# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The claims that are prepared on this node: which, on disk, and in the CDI spec that containers start with.

The file outlasts a reboot, the spec does not: it is made of the file at each start. Both are whole at any moment, and the file is first,
so that a process that is killed between them leaves a claim that the next one gives its spec.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import HeldEntry
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.daemon.files import replace_files
from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.dra.claims import (
    CDI_FILE,
    MOST_BYTES,
    MOST_CLAIMS,
    Claim,
    ClaimError,
    OtherUnitError,
    PreparedClaim,
    cdi_spec,
    conflict,
    from_checkpoint,
    parse_claim,
    prepare,
    to_checkpoint,
)
from gpushare_runtime.dra.slices import API
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

NAME: Final = "claims.json"
# kubelet waits 45 s for the answer, and starts the pod again later if there is none.
_API_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 20.0
TURN_SECONDS: Final = 20.0
"""Between two questions whether the API server still has a claim, each about another one."""


class Claims:
    """For one event loop. inventory: the GPUs as they are now, None before the first reading; unit: of their memory.

    changed: told after each change. left: what pods had by claims that are released. alive: of these pods' UIDs, those with a process.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        state: Path,
        cdi_dir: Path,
        inventory: Callable[[], Inventory | None],
        unit: Unit,
        changed: Callable[[], None] = lambda: None,
        left: Callable[[], Iterable[HeldEntry]] = lambda: (),
        alive: Callable[[Set[str]], Set[str]] = lambda uids: frozenset(),
    ) -> None:
        self.by_uid: dict[str, PreparedClaim] = {}
        self._lost: set[str] = set()
        self._turn = ""
        self._client = client
        self._node = node
        self._file = state / NAME
        self._spec = cdi_dir / CDI_FILE
        self._inventory = inventory
        self._unit = unit
        self._changed = changed
        self._left = left
        self._alive = alive
        self._lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None

    def load(self) -> None:
        """Read what the process before has prepared, and give its containers their spec again. Blocks; for the start.

        FatalError where that cannot be read, or its unit was another one, in which a claim is not a whole number of this one's.
        """
        try:
            self._read()
            _write(self._file, self._spec, self.by_uid, self._unit)
        except OSError as error:
            # As if there were none, it would be overwritten.
            raise FatalError(f"{self._file} cannot be read, or {self._spec} be written: {error}", restart=True) from None

    def _read(self) -> None:
        """OSError, FatalError."""
        try:
            with self._file.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            self.by_uid = {entry.claim.uid: entry for entry in from_checkpoint(data, self._unit)}
        except FileNotFoundError:
            pass
        except OtherUnitError as error:
            raise FatalError(f"{self._file}: {error}", restart=True) from None
        except ClaimError as error:
            aside = self._file.with_name(f"{NAME}.unusable")
            self._file.replace(aside)
            # kubelet prepares the claims of its pods again when it starts, or a container of theirs does.
            words = "%s cannot be used (%s) and is %s now: until kubelet restarts, containers of pods with GPUs cannot restart"
            log.warning(words, self._file, error, aside.name)

    async def prepare(self, namespace: str, uid: str, name: str) -> PreparedClaim:
        """The claim, ready for containers. ClaimError. A second time it gives the same, unless the claim has a new allocation."""
        try:
            where = path(API, "namespaces", namespace, "resourceclaims", name)
            value = await self._client.get(where, within=_API_SECONDS)
        except (KubeError, ValueError) as error:
            raise ClaimError(f"claim {quote(f'{namespace}/{name}')} cannot be read: {error}") from None
        async with self._lock:
            inventory = self._inventory()
            if inventory is None:
                raise ClaimError("the GPUs of this node have not been read yet; kubelet tries again")
            claim = parse_claim(value, self._node, inventory)
            if claim.uid != uid:
                raise ClaimError(f"claim {claim} has the UID {claim.uid}, kubelet asks for {quote(uid)}: its pod was replaced")
            before = self.by_uid.get(uid)
            if before is not None and before.claim.parts == claim.parts:
                prepared = PreparedClaim(claim, before.devices)
            else:
                left = [entry for entry in self._left() if entry.uid not in claim.pods]
                live = await in_thread(partial(self._alive, {entry.uid for entry in left})) if left else ()
                left = [entry for entry in left if entry.uid in live]
                why = conflict(claim, self.claims(), inventory, left)
                if why and await self._forget_those_that_are_gone(claim):
                    why = conflict(claim, self.claims(), inventory, left)
                if not why and before is None and len(self.by_uid) >= MOST_CLAIMS:
                    why = f"{len(self.by_uid)} claims are prepared on this node, and no more than {MOST_CLAIMS} can be"
                if why:
                    log.warning("no room: %s", conflict(claim, self.claims(), inventory, left, everybody=True) or why)
                    raise ClaimError(why)
                prepared = prepare(claim, inventory)
            if prepared != before:
                await self._set({**self.by_uid, uid: prepared})
            return prepared

    async def release(self, uid: str) -> None:
        """Forget a claim; it need not be known. ClaimError where the disk does not take it."""
        async with self._lock:
            if uid in self.by_uid:
                await self._set({key: entry for key, entry in self.by_uid.items() if key != uid})

    async def _forget_those_that_are_gone(self, asking: Claim) -> bool:
        """Claims on the same GPUs that kubelet never releases, since it has lost its own record. Returns whether there were any."""
        uuids = {part.uuid for part in asking.parts}
        others = [claim for claim in self.claims() if claim.uid != asking.uid and any(part.uuid in uuids for part in claim.parts)]
        here = await asyncio.gather(*map(self._exists, others))
        return await self._forget([claim for claim, exists in zip(others, here, strict=True) if not exists])

    async def run(self) -> NoReturn:
        """Never returns. kube-scheduler gives the memory of a claim away that the API server has lost: so ask about each in turn."""
        while True:
            await asyncio.sleep(TURN_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Ask about the next claim."""
        uids = sorted(self.by_uid)
        if not uids:
            return
        self._turn = next((uid for uid in uids if uid > self._turn), uids[0])
        claim = self.by_uid[self._turn].claim
        try:
            if not await self._exists(claim):
                async with self._lock:
                    if claim.uid in self.by_uid:
                        await self._forget([claim])
        except ValueError as error:
            log.warning("claim %s: %s", claim, error)

    async def _forget(self, gone: Sequence[Claim]) -> bool:
        """Those of the claims that the API server has lost whose pods have no process. Returns whether there were any. ClaimError."""
        live = await in_thread(partial(self._alive, {pod for claim in gone for pod in claim.pods})) if gone else ()
        ended = {claim.uid: claim for claim in gone if claim.pods and not any(pod in live for pod in claim.pods)}
        lost = [claim for claim in gone if claim.uid not in ended and claim.uid not in self._lost]
        if lost:
            words = "the API server has no claim %s any more, and its pod runs: its GPUs take no other pods until kubelet releases it"
            log.warning(words, ", ".join(map(str, lost)))
            self._lost = {uid for uid in self._lost if uid in self.by_uid}.union(claim.uid for claim in lost)
            self._changed()
        if ended:
            words = "forgetting %s: the API server has no such claim any more, and its pods have no process"
            log.warning(words, ", ".join(map(str, ended.values())))
            await self._set({uid: entry for uid, entry in self.by_uid.items() if uid not in ended})
        return bool(ended)

    async def _exists(self, claim: Claim) -> bool:
        """Whether the API server has it, or does not say."""
        try:
            where = path(API, "namespaces", claim.namespace, "resourceclaims", claim.name)
            found = await self._client.get(where, within=_API_SECONDS)
        except KubeError as error:
            return error.status != 404
        return (found.get("metadata") or {}).get("uid") == claim.uid

    def claims(self) -> list[Claim]:
        return [entry.claim for entry in self.by_uid.values()]

    def lost(self) -> frozenset[str]:
        """UUIDs of the GPUs that kube-scheduler takes for free, because their claims are gone from the API server while a pod has them."""
        return frozenset(part.uuid for claim in self.claims() if claim.uid in self._lost for part in claim.parts)

    async def _set(self, by_uid: Mapping[str, PreparedClaim]) -> None:
        try:
            await asyncio.wait_for(self._save(by_uid), _WRITE_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            raise ClaimError(
                f"{self._file} and {self._spec} cannot be written ({str(error) or 'no answer'}); kubelet tries again"
            ) from None
        self.by_uid = dict(by_uid)
        self._changed()

    async def _save(self, by_uid: Mapping[str, PreparedClaim]) -> None:
        if self._writing is not None:
            # A write that took too long continues, and both would write the same files.
            await asyncio.wait((self._writing,))
        self._writing = asyncio.ensure_future(in_thread(partial(_write, self._file, self._spec, by_uid, self._unit)))
        await asyncio.shield(self._writing)


def _write(file: Path, spec: Path, by_uid: Mapping[str, PreparedClaim], unit: Unit) -> None:
    """OSError."""
    data = to_checkpoint(by_uid.values(), unit)
    if len(data) > MOST_BYTES:
        # The next process would not read it.
        raise OSError(f"{len(data)} bytes of claims are more than {MOST_BYTES}")
    environments = {name: variables for entry in by_uid.values() for name, variables in entry.devices.items()}
    for folder, mode in ((file.parent, 0o700), (spec.parent, 0o755)):
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    contents = {file: data, **({spec: cdi_spec(environments)} if environments else {})}
    replace_files(contents, {file: 0o600, spec: 0o644})
    if not environments:
        # A spec without devices is none.
        with contextlib.suppress(FileNotFoundError):
            spec.unlink()
