# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The reasons of what this product rejects: words that stay when a message changes, in errors, metrics and logs."""

from __future__ import annotations

from typing import Literal

BindReason = Literal["no-room", "elsewhere", "gone", "invalid", "not-ready", "api-rejected", "api-unreachable", "api-unknown"]
"""Why a pod was not bound. no-room: the node's GPUs were given to others after filter; elsewhere: it is on another node, or on
its way there; api-unreachable: no Binding was sent; api-unknown: the API server has not said whether the Binding happened."""
WaitReason = Literal["room", "nominated", "invalid", "unsupported"]
"""Why a pod is on no node. room: it waits for GPUs; nominated: for the pods that leave the node it was nominated for; unsupported: it
asks for GPUs by a way that this product does not place."""
UnfitReason = Literal["no-room", "too-small", "reserved", "incompatible", "isolation", "no-links", "no-compute", "no-inventory", "fault"]
"""Why a request does not fit on a node. no-room: its GPUs lack free room for it, or keep it back; too-small: even empty ones would;
reserved: it would fit without the reservations of groups; incompatible: the pod accepts none of its GPUs; isolation: the node has
another isolation than the pod requires, or MPS for several GPUs; no-links: its GPUs never have the links that the pod requires;
no-compute: the node shares out no compute; no-inventory: its GPUs
are not known; fault: it cannot be computed."""
RejectionReason = Literal[
    "no-room",
    "unavailable",
    "unknown-ids",
    "gpu-count",
    "unhealthy",
    "recorded-twice",
    "in-use",
    "incompatible",
    "wrong-share",
    "overtaken",
    "limit",
    "isolation",
]
"""Why the device plugin rejected an allocation or a start.

no-room: no GPU has as many free ids; unavailable: kubelet gives ids that another container has, or of a GPU that takes no pod;
unknown-ids: they are of no GPU in the node; gpu-count: they are of more or fewer GPUs than the container needs; in-use: processes
of another pod use the GPU; incompatible: the pod's rules exclude the GPU; wrong-share: the container got the share of compute of
another pod; overtaken: kubelet asked for several pods at once; limit: the memory limit cannot be set; isolation: the node lacks
the isolation that the pod requires.
"""
