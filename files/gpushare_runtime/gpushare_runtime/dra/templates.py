# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-claims: keeps the ResourceClaimTemplate of gpushare in every namespace. Wiring and decisions.

It is the same in each of them, and nothing can be allocated for it: an admission policy makes of each pod's claim what the pod asks for. So
two of these may run at once, nothing is deleted here, and who has the account's token can only make the same object again.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NoReturn

from gpushare_runtime.daemon import health_server
from gpushare_runtime.daemon.runner import Signals, Status, keep_alive, run, run_all
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.dra.slices import API, API_VERSION, CLASS
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.kube.service_account import connect
from gpushare_runtime.settings import options
from gpushare_runtime.settings.claims import ClaimsConfig

log = logging.getLogger(__name__)

NAME: Final = "gpushare-claims"
TEMPLATE: Final = CLASS
PART: Final = "templates"
"""Of the status."""
_SECONDS: Final = 10.0
# Where one namespace does not take it, the others get theirs first.
_RETRY_SECONDS: Final = 5.0
_NAMED: Final = 3


def template(namespace: str) -> dict[str, Any]:
    """The template. Its selector lets no device pass."""
    exactly = {"deviceClassName": TEMPLATE, "allocationMode": "ExactCount", "count": 1, "selectors": [{"cel": {"expression": "false"}}]}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": TEMPLATE, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


class Templates:
    """The namespaces, and which of them have the template. For one event loop."""

    def __init__(self, client: KubeClient, status: Status) -> None:
        self._client = client
        self._status = status
        self._changes = Changes()
        self._namespaces: set[str] | None = None
        self._have: set[str] | None = None
        self._failed: dict[str, str] = {}

    def parts(self) -> list[Any]:
        """Run them together."""
        namespaces: Reflector[tuple[str, bool]] = Reflector(
            self._client,
            path("api/v1", "namespaces"),
            on_replace=lambda found: self._set_namespaces({name for name, ending in found if not ending}),
            on_event=self._namespace,
            transform=lambda raw: (raw["metadata"]["name"], bool(raw["metadata"].get("deletionTimestamp"))),
            metadata_only=True,
        )
        templates: Reflector[str] = Reflector(
            self._client,
            path(API, "resourceclaimtemplates"),
            on_replace=lambda found: self._set_have(set(found)),
            on_event=self._template,
            field_selector=f"metadata.name={TEMPLATE}",
            transform=lambda raw: str(raw["metadata"]["namespace"]),
            metadata_only=True,
        )
        return [namespaces.run(), templates.run(), self._run()]

    def _set_namespaces(self, found: set[str]) -> None:
        self._namespaces = found
        self._changes.notify()

    def _namespace(self, kind: str, found: tuple[str, bool]) -> None:
        name, ending = found
        known = self._namespaces if self._namespaces is not None else set()
        if kind == "DELETED" or ending:
            known.discard(name)
        else:
            known.add(name)
        self._set_namespaces(known)

    def _set_have(self, found: set[str]) -> None:
        self._have = found
        self._changes.notify()

    def _template(self, kind: str, namespace: str) -> None:
        have = self._have if self._have is not None else set()
        if kind == "DELETED":
            have.discard(namespace)
        else:
            have.add(namespace)
        self._set_have(have)

    async def _run(self) -> NoReturn:
        while True:
            count = self._changes.count
            if self._namespaces is not None and self._have is not None:
                self._failed = {name: why for name, why in self._failed.items() if name in self._namespaces}
                for name in sorted(self._namespaces - self._have):
                    await self._make(name)
                self._tell(len(self._namespaces))
            await self._changes.after(count, _RETRY_SECONDS if self._failed else None)

    async def _make(self, namespace: str) -> None:
        try:
            where = path(API, "namespaces", namespace, "resourceclaimtemplates")
            await self._client.create(where, template(namespace), within=_SECONDS)
        except KubeError as error:
            # 409: the other one was faster; the watch says so in a moment. 404: the namespace is gone.
            if error.status not in (404, 409):
                if self._failed.get(namespace) != str(error):
                    log.warning("namespace %s has no template %s: %s", namespace, TEMPLATE, error)
                self._failed[namespace] = str(error)
                return
        self._failed.pop(namespace, None)
        if self._have is not None:
            self._have.add(namespace)

    def _tell(self, namespaces: int) -> None:
        if self._failed:
            named = ", ".join(sorted(self._failed)[:_NAMED])
            why = self._failed[min(self._failed)]
            self._status.degraded(PART, f"{len(self._failed)} of {namespaces} namespaces have none ({named}): {why[:200]}")
        else:
            self._status.ok(PART, f"{namespaces} namespaces have theirs")


def parse_arguments(arguments: Sequence[str] | None = None) -> ClaimsConfig:
    """The settings; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = argparse.ArgumentParser(prog=NAME, description="Keep the ResourceClaimTemplate of gpushare in every namespace.")
    options.add_options(parser, ClaimsConfig)
    given = options.read(parser, ClaimsConfig, arguments)
    given.checked()
    return given.settings


async def serve(settings: ClaimsConfig, signals: Signals) -> None:
    """Run until SIGTERM or SIGINT."""
    status = Status(required=(PART,))
    async with connect(settings.kubeconfig, None, NAME) as (client, _):
        parts = Templates(client, status).parts()
        alive = keep_alive(lambda: status.ready)
        await run_all([*parts, *health_server.parts(settings.health_listen, status.readiness), alive], signals.stop)


def main(argv: Sequence[str] | None = None) -> int:
    """The console command. Returns the exit status."""
    settings = parse_arguments(argv)
    return run(partial(serve, settings), settings.log_level)


if __name__ == "__main__":
    sys.exit(main())
