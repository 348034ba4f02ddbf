# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node has the device strategy that the inventory asks for, and what an image that sets NVIDIA_VISIBLE_DEVICES=all sees there.

Pure. docs/operate/visibility.md has the table behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...module_utils._cluster.names import ANNOTATION_GPUS
from ...module_utils._facts.capacity import AnnotationError, published
from ...module_utils._facts.device_strategy import AUTO, CDI, ENVIRONMENT, MOUNTS, CdiFacts, ToolkitFacts, choose
from ...module_utils._formats.finding import ERROR, NOTE, WARNING
from ...module_utils._formats.nvidia_config import CONFIG, ENVIRONMENT_KEY, MOUNTS_KEY, STRICT_IN_WORDS
from .daemons import SITE
from .findings import VerifyFindings

_RUNTIME = "nvidia"
_ALL = "NVIDIA_VISIBLE_DEVICES=all"


def needs_no_runtime(gpu: Mapping[str, Any], default: str) -> bool:
    """Whether the default runtime does not matter. default: gpushare_default_runtime."""
    return default == "unchanged" or (default == AUTO and gpu["strategy"]["now"] == CDI)


def judge_visibility(found: VerifyFindings, seen: Mapping[str, Any], node: Mapping[str, Any] | None) -> None:
    """seen: of gpushare_verify_host; node: as the API has it, None if the API was not asked."""
    gpu, asked = seen["gpu"], seen["places"]["device_strategy"]
    facts = gpu["strategy"]
    if node:
        _published(found, node, asked, CdiFacts(**facts["cdi"]), facts["holders"])
    toolkit = ToolkitFacts(**facts["toolkit"])
    if facts["now"]:
        _visible(found, facts["now"], gpu["container_runtime"], toolkit)
    if toolkit.no_cgroups:
        _no_cgroups(found, needed=facts["now"] != CDI and gpu["cdi"]["mode"] != CDI)


def _no_cgroups(found: VerifyFindings, *, needed: bool) -> None:
    """needed: whether it is nvidia's mode legacy that gives containers their GPUs; by CDI the low-level runtime sets up the cgroups."""
    seen = f"no-cgroups = true in {CONFIG}" + ("" if needed else ", which has no effect in the mode cdi that this host has now")
    expected = "no-cgroups = false: with it containers have the files of their GPUs and may not open them"
    cure = "nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=false; then start the pods of this node with GPUs again"
    found.say("no_cgroups", seen, expected, cure, ERROR if needed else WARNING)


def _published(found: VerifyFindings, node: Mapping[str, Any], asked: str, cdi: CdiFacts, holders: list[str]) -> None:
    try:
        now = published(node["metadata"]["annotations"][ANNOTATION_GPUS]).strategy
    except (KeyError, AnnotationError):
        return  # said of the GPUs
    expected = choose(asked, cdi, now, holders)
    if now != expected.strategy:
        words = f"device strategy {now}" if now else "a device plugin that publishes no device strategy"
        why = f", which {asked} means on this host" if asked == AUTO else ""
        found.say("strategy_wrong", words, f"{expected.strategy}{why}", SITE)
    elif expected.kept:
        seen = f"device strategy {now}, which the node keeps while {len(holders)} pods have GPUs by it"
        found.say("strategy_kept", seen, expected.kept, f"{SITE} when no pod of the node has GPUs")


def _visible(found: VerifyFindings, strategy: str, runtime: Mapping[str, Any] | None, toolkit: ToolkitFacts) -> None:
    by_default = runtime is not None and runtime["running_default"] == _RUNTIME
    if strategy == MOUNTS and not toolkit.mounts:
        seen = f"{CONFIG} that does not accept volume mounts: containers get no GPU by the strategy {MOUNTS}"
        found.say("mounts_ignored", seen, f"{MOUNTS_KEY} = true", f"{SITE}, or set it")
    if strategy == ENVIRONMENT and not toolkit.environment:
        seen = f"{CONFIG} that ignores the environment: containers get no GPU by the strategy {ENVIRONMENT}"
        found.say("environment_ignored", seen, f"{ENVIRONMENT_KEY} = true", f"{SITE}, or set it")
    if not (by_default and toolkit.environment):
        return
    seen = f"the default runtime {_RUNTIME} honours every container's environment: a container with {_ALL} sees all GPUs"
    if strategy == ENVIRONMENT:
        found.say("gpus_visible", seen, "containers that see only their GPUs", "set gpushare_device_strategy: auto for this host", NOTE)
    else:
        expected = f"{STRICT_IN_WORDS} in {CONFIG}"
        found.say("gpus_visible", seen, expected, f"{SITE}, or set it", ERROR)
