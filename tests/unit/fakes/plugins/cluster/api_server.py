# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubectl with a cluster behind it, and objects for it."""

from __future__ import annotations

import copy
import json
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import WantedObjects, converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of

Json = dict[str, Any]

NOT_FOUND = "Error from server (NotFound): the server could not find the requested resource"


class ApiServer:
    """kubectl with a cluster behind it: objects by kind and name, which apply changes. served: kinds by group and version."""

    def __init__(self, *objects: Json, served: dict[str, list[str]] | None = None) -> None:
        self.objects = {self.key(item): copy.deepcopy(item) for item in objects}
        self.served = served or {}
        self.writes: list[str] = []

    @staticmethod
    def key(item: Json) -> tuple[str, str]:
        return item["kind"], item["metadata"]["name"]

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        words = argv[4:]
        given = json.loads(data)["items"] if data else []
        if words[:2] == ["get", "--raw"]:
            version = words[2].removeprefix("/apis/" if words[2].count("/") == 3 else "/api/")
            if version not in self.served:
                return 1, "", NOT_FOUND
            return 0, json.dumps({"resources": [{"kind": kind} for kind in self.served[version]]}), ""
        if words[0] == "get":
            found = [self.objects[self.key(item)] for item in given if self.key(item) in self.objects]
        elif words[0] == "delete":
            self.writes.append("delete")
            found = [self.objects.pop(self.key(item)) for item in given]
        else:
            assert words[0] == "apply"
            found = given
            if "--dry-run=server" not in words:
                self.writes.append("apply")
                self.objects.update({self.key(item): item for item in given})
        return 0, json.dumps({"kind": "List", "items": found}), ""

    def converge(self, wanted: WantedObjects, *, check_mode: bool = False) -> Json:
        return dict(answer_of(converge(Kubectl(self, "kubectl", "admin.conf"), wanted, check_mode)))


def thing(name: str, kind: str = "ConfigMap", version: str = "v1", **content: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}
