# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kube-scheduler manifest and configuration without our part, where others have changed them since we did.

Private to this collection. Pure: works on what the YAML files load as, and never changes its arguments.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Mapping, NamedTuple, Optional

from ansible_collections.gpushare.kubernetes.plugins.module_utils._kube_scheduler import (
    ANNOTATION,
    PERCENTAGE,
    TLS_VOLUME,
    VOLUME,
    Extender,
    check_config,
    is_ours,
    scheduler_container,
    unmount,
)


class Percentage(NamedTuple):
    """percentageOfNodesToScore as it was before us; None: it was not there."""

    before: Optional[int]


def without_extender(config: Any, extender: Extender, percentage: Optional[Percentage]) -> Dict[str, Any]:
    """A configuration without our extender. percentage: what to put back if the present value is ours, None if it is not."""
    kept = copy.deepcopy(check_config(config))
    extenders = [entry for entry in kept.get("extenders") or [] if not is_ours(entry, extender)]
    if extenders:
        kept["extenders"] = extenders
    elif kept.get("extenders"):
        del kept["extenders"]
    if percentage is not None and percentage.before is None:
        kept.pop(PERCENTAGE, None)
    elif percentage is not None:
        kept[PERCENTAGE] = percentage.before
    return kept


def without_us(manifest: Mapping[str, Any], config_path: Optional[str]) -> Dict[str, Any]:
    """A static pod without our annotation and certificates, and without `--config=<config_path>` and its volume (None: they stay)."""
    kept: Dict[str, Any] = copy.deepcopy(dict(manifest))
    unmount(kept, TLS_VOLUME)
    if config_path is not None:
        unmount(kept, VOLUME)
        container = scheduler_container(kept)
        for key in ("command", "args"):
            if f"--config={config_path}" in (container.get(key) or []):
                container[key] = [word for word in container[key] if word != f"--config={config_path}"]
    annotations = (kept.get("metadata") or {}).get("annotations") or {}
    if annotations.pop(ANNOTATION, None) is not None and not annotations:
        del kept["metadata"]["annotations"]
    return kept
