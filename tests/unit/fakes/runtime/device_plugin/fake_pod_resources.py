# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's podresources API as its source has it (1.36.3): by pod name, without UIDs and without ordinary init containers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpushare_runtime.device_plugin.kubelet.proto import podresources_pb2 as pb


@dataclass
class FakePodResources:
    """said: (namespace, pod, container) → resource → ids, as it is answered; asked: how often. healthy: resource → ids, None for a kubelet
    that does not tell."""

    said: dict[tuple[str, str, str], dict[str, list[str]]] = field(default_factory=dict)
    asked: int = 0
    healthy: Mapping[str, Set[str]] | None = None
    answers: Callable[[], Mapping[str, Set[str]]] | None = None  # instead of `healthy`
    asked_for_healthy: int = 0

    async def allocatable(self, request: pb.AllocatableResourcesRequest, context: Any) -> pb.AllocatableResourcesResponse:
        self.asked_for_healthy += 1
        healthy = self.answers() if self.answers else self.healthy
        if healthy is None:
            await context.abort(grpc.StatusCode.UNKNOWN, "API GetAllocatableResources disabled")
        # One entry for each device, as kubelet answers.
        found = [(resource, device_id) for resource, ids in (healthy or {}).items() for device_id in sorted(ids)]
        return pb.AllocatableResourcesResponse(
            devices=[pb.ContainerDevices(resource_name=resource, device_ids=[device_id]) for resource, device_id in found]
        )

    async def list(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        self.asked += 1
        return pb.ListPodResourcesResponse(
            pod_resources=[
                pb.PodResources(
                    name=pod,
                    namespace=namespace,
                    containers=[
                        pb.ContainerResources(
                            name=container,
                            # In two parts, as kubelet answers where ids are of several NUMA nodes.
                            devices=[
                                pb.ContainerDevices(resource_name=resource, device_ids=part)
                                for resource, ids in resources.items()
                                for part in (ids[:1], ids[1:])
                            ],
                        )
                    ],
                )
                for (namespace, pod, container), resources in self.said.items()
            ]
        )


@asynccontextmanager
async def serving_pod_resources(root: Path) -> AsyncIterator[FakePodResources]:
    """On kubelet's socket below its root directory."""
    fake = FakePodResources()
    (root / "pod-resources").mkdir(parents=True)
    methods = {
        "List": grpc.unary_unary_rpc_method_handler(
            fake.list,
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        ),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
            fake.allocatable,
            request_deserializer=pb.AllocatableResourcesRequest.FromString,
            response_serializer=pb.AllocatableResourcesResponse.SerializeToString,
        ),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)])
    server.add_insecure_port(f"unix:{root}/pod-resources/kubelet.sock")
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(0)
