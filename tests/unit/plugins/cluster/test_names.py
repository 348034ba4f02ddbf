# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The names that the plugins share with the daemons are the daemons' own."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import names

from gpushare_runtime.core import protocol

SHARED = {
    "MEMORY": "RESOURCE_MEMORY",
    "GPUS": "RESOURCE_GPUS",
    "COMPUTE": "RESOURCE_CORE",
    "NAMESPACE": "UNHEALTHY_NAMESPACE",
    **{name: name for name in vars(names) if name.isupper() and name in vars(protocol)},
}


@pytest.mark.parametrize("name", SHARED)
def test_a_name_is_that_of_the_daemons(name: str) -> None:
    assert getattr(names, name) == getattr(protocol, SHARED[name])


def test_most_are_compared() -> None:
    known = {"ANNOTATION_GPUS", "ANNOTATION_HELD", "ANNOTATION_ALLOCATION", "ANNOTATION_INDEX", "LABEL_PLACEMENT", "UNHEALTHY_PREFIX"}
    assert known <= set(SHARED)
    assert names.DEVICE_PLUGINS == protocol.KUBELET_PLUGIN_DIR
    assert protocol.FORMER_SOCKETS == (names.ORIGINAL_SOCKET, names.FORMER_SOCKET)
    assert (names.DRA_NVIDIA, names.DRA_HAMI) == protocol.DRA_DRIVERS
    assert protocol.DRA_REGISTRATION == names.DRA_REGISTRATION
    for begin in ("aliyungpushare-mem-", "aliyungpushare-gpus-"):
        assert begin in (protocol.SOCKET_MEMORY, protocol.SOCKET_GPUS)
        assert re.fullmatch(names.SOCKETS, f"{begin}0123cdef.sock")
    for other in ("aliyungpushare-mem-.sock", "aliyungpushare-mem-0123cdefg.sock", "xaliyungpushare-mem-0123cdef.sock", "kubelet.sock"):
        assert not re.fullmatch(names.SOCKETS, other)
        assert not re.fullmatch(names.LEFT_SOCKETS, other)
    for former in protocol.FORMER_SOCKETS:
        assert re.fullmatch(names.LEFT_SOCKETS, former)
        assert not re.fullmatch(names.SOCKETS, former)
