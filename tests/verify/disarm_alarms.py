# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Disarms every alarm of the etcd of this control plane, as `etcdctl alarm disarm` does, which the lab's image does not have."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import Any

PKI = "/etc/kubernetes/pki/etcd"


def ask(context: ssl.SSLContext, action: dict[str, Any]) -> Any:
    """The answer of etcd's gateway for JSON."""
    request = urllib.request.Request(
        "https://127.0.0.1:2379/v3/maintenance/alarm", json.dumps(action).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:
        return json.load(answer)


def main() -> None:
    context = ssl.create_default_context(cafile=f"{PKI}/ca.crt")
    context.load_cert_chain(f"{PKI}/server.crt", f"{PKI}/server.key")
    for alarm in ask(context, {"action": "GET"}).get("alarms", ()):
        ask(context, {**alarm, "action": "DEACTIVATE"})


if __name__ == "__main__":
    main()
