# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's podresources API (v1): which ids it believes its containers to have, by pod name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from gpushare_runtime.device_plugin import podresources_pb2 as pb

_SECONDS: Final = 10.0
# The list has every id of every pod, which is more than gRPC's default of 4 MiB on large nodes.
_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)

Said = Mapping[tuple[str, str], Mapping[str, frozenset[str]]]
"""("namespace/name" of the pod, container) → resource → ids; {} for a container without any. No init containers."""


class PodResourcesError(Exception):
    """kubelet does not answer; the text says what it said."""


async def ask(socket: Path, resources: Collection[str]) -> Said:
    """What kubelet says of these resources. PodResourcesError."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            list_all = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=pb.ListPodResourcesRequest.SerializeToString,
                response_deserializer=pb.ListPodResourcesResponse.FromString,
            )
            answer = await list_all(pb.ListPodResourcesRequest(), timeout=_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(f"{error.code().name}: {error.details()}") from None
    said: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            ids = said.setdefault((f"{pod.namespace}/{pod.name}", container.name), {})
            for devices in container.devices:
                if devices.resource_name in resources:
                    ids[devices.resource_name] = ids.get(devices.resource_name, frozenset()).union(devices.device_ids)
    return said
