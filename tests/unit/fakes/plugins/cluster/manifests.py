# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The objects that a role applies: of its template, or of the builders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import on_hosts

ROLES = Path(__file__).resolve().parents[5] / "roles"


def objects(template: str, **variables: Any) -> list[dict[str, Any]]:
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["to_json"] = json.dumps
    text = environment.from_string((ROLES / template).read_text()).render(**variables)
    return [document for document in yaml.safe_load_all(text) if document]


def of_role(role: str, **values: Any) -> list[dict[str, Any]]:
    return on_hosts.objects(role, on_hosts.OnHosts(**values))
