# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node: a device plugin that is not ours registers a resource with kubelet, again and again, until it is stopped."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

FOLDER = Path("/var/lib/kubelet/device-plugins")
ENDPOINT = "another.sock"
STOPPED = threading.Event()


class Plugin(DevicePluginServicer):
    """Four devices that are nobody's GPUs."""

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return pb.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Any:
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=f"another-{n}", health="Healthy") for n in range(4)])
        STOPPED.wait()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: STOPPED.set())
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    add_DevicePluginServicer_to_server(Plugin(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{FOLDER / ENDPOINT}")
    server.start()
    first = True
    while not STOPPED.is_set():
        with grpc.insecure_channel(f"unix:{FOLDER / 'kubelet.sock'}") as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=ENDPOINT, resource_name=sys.argv[1])
            RegistrationStub(channel).Register(request, timeout=5)  # type: ignore[no-untyped-call]
        if first and os.environ.get("NOTIFY_SOCKET"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
        first = False
        STOPPED.wait(2)
    server.stop(0)
    (FOLDER / ENDPOINT).unlink(missing_ok=True)


main()
