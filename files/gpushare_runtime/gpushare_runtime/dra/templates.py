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
from collections.abc import Callable, Sequence
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


class _Names:
    """The names that a watch shows, each with whether it counts. known: None before the first list. changed: told of each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.known: set[str] | None = None
        self._changed = changed

    def replace(self, found: list[tuple[str, bool]]) -> None:
        self.known = {name for name, counts in found if counts}
        self._changed()

    def event(self, kind: str, found: tuple[str, bool]) -> None:
        name, counts = found
        self.known = self.known or set()
        if kind == "DELETED" or not counts:
            self.known.discard(name)
        else:
            self.known.add(name)
        self._changed()


class Templates:
    """The namespaces, and which of them have the template. For one event loop."""

    def __init__(self, client: KubeClient, status: Status) -> None:
        self._client = client
        self._status = status
        self._changes = Changes()
        self._namespaces = _Names(self._changes.notify)
        self._have = _Names(self._changes.notify)
        self._failed: dict[str, str] = {}

    def parts(self) -> list[Any]:
        """Run them together."""
        namespaces: Reflector[tuple[str, bool]] = Reflector(
            self._client,
            path("api/v1", "namespaces"),
            on_replace=self._namespaces.replace,
            on_event=self._namespaces.event,
            transform=lambda raw: (raw["metadata"]["name"], not raw["metadata"].get("deletionTimestamp")),
            metadata_only=True,
        )
        templates: Reflector[tuple[str, bool]] = Reflector(
            self._client,
            path(API, "resourceclaimtemplates"),
            on_replace=self._have.replace,
            on_event=self._have.event,
            field_selector=f"metadata.name={TEMPLATE}",
            transform=lambda raw: (str(raw["metadata"]["namespace"]), True),
            metadata_only=True,
        )
        return [namespaces.run(), templates.run(), self._run()]

    async def _run(self) -> NoReturn:
        while True:
            count = self._changes.count
            namespaces, have = self._namespaces.known, self._have.known
            if namespaces is not None and have is not None:
                self._failed = {name: why for name, why in self._failed.items() if name in namespaces}
                for name in sorted(namespaces - have):
                    await self._make(name)
                self._tell(len(namespaces))
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
        self._have.event("ADDED", (namespace, True))

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
