# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bills of materials, CycloneDX 1.6 as JSON. The same input gives the same bytes.

Pure. The form: https://cyclonedx.org/docs/1.6/json/ (read 2026-11-25); a test checks it against CycloneDX's own schema.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

_NAME = "gpushare.kubernetes"


@dataclass(frozen=True)
class Component:
    """One part. kind: library, container, application or file. purl: "" where there is none. hashes: SHA-256, several for a locked
    package, because an installation takes one file of several."""

    kind: str
    name: str
    version: str
    hashes: Sequence[str]
    purl: str = ""
    properties: Collection[tuple[str, str]] = field(default=())

    @property
    def ref(self) -> str:
        """The name of the component within the bill."""
        return self.purl or f"{self.kind}:{self.name}"


def pypi(name: str, version: str, hashes: Sequence[str]) -> Component:
    return Component("library", name, version, hashes, f"pkg:pypi/{name.lower()}@{version}")


def bill(version: str, components: Collection[Component], identity: str, when: datetime | None = None) -> str:
    """The bill of the product in this version. identity: what tells it from others of the same version; when: its time, if it has one."""
    parts = sorted(components, key=lambda component: component.ref)
    written = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{_NAME}/{version}/{hashlib.sha256(identity.encode()).hexdigest()}')}",
        "version": 1,
        "metadata": {
            **({"timestamp": when.isoformat()} if when else {}),
            "component": {"bom-ref": _NAME, "name": _NAME, "type": "application", "version": version},
        },
        "components": [_component(part) for part in parts],
        "dependencies": [{"ref": _NAME, "dependsOn": [part.ref for part in parts]}, *({"ref": part.ref} for part in parts)],
    }
    return json.dumps(written, indent=2, sort_keys=True) + "\n"


def _component(component: Component) -> dict[str, object]:
    return {
        "bom-ref": component.ref,
        "type": component.kind,
        "name": component.name,
        "hashes": [{"alg": "SHA-256", "content": content} for content in component.hashes],
        **({"version": component.version} if component.version else {}),
        **({"purl": component.purl} if component.purl else {}),
        **({"properties": [{"name": name, "value": value} for name, value in component.properties]} if component.properties else {}),
    }
