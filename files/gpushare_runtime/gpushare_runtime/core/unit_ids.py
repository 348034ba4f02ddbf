# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device ids that kubelet gives: of a unit of memory, in the original's form, or of a whole GPU, its UUID. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.core.inventory import INSTANCE_PREFIX

_SEPARATOR: Final = "-_-"


def unit_id(uuid: str, slot: int) -> str:
    """The device id of one unit: GPU UUID and slot (0 … units-1)."""
    return f"{uuid}{_SEPARATOR}{slot}"


def parse_unit_id(device_id: str) -> tuple[str, int]:
    """(GPU UUID, slot) of a unit id; ValueError quotes what was found."""
    uuid, _, slot = device_id.rpartition(_SEPARATOR)
    if not uuid or not (slot.isascii() and slot.isdigit()):
        raise ValueError(f"device id {quote(device_id)} is not of the form <gpu UUID>{_SEPARATOR}<number>")
    return uuid, int(slot)


def gpu_uuids_of(resource: str, ids: Iterable[str]) -> set[str]:
    """The UUIDs of the GPUs that these ids belong to."""
    return set(ids) if resource == protocol.RESOURCE_GPUS else {gpu_of_unit(i) for i in ids}


def gpu_of(resource: str, device_id: str) -> str:
    """The UUID of the GPU that an id of ours belongs to; "" for an id of another form."""
    try:
        uuid = device_id if resource == protocol.RESOURCE_GPUS else parse_unit_id(device_id)[0]
    except ValueError:
        return ""
    return uuid if uuid.startswith(("GPU-", INSTANCE_PREFIX)) else ""


def gpu_of_unit(device_id: str) -> str:
    """The GPU UUID in a unit id; an id of another form is returned as it is, so that it matches no GPU."""
    try:
        return parse_unit_id(device_id)[0]
    except ValueError:
        return device_id
