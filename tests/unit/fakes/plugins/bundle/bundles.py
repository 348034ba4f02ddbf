# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Small bundles of made-up packages, whole and with each kind of damage."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping

from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import tar
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle import make
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.contents import (
    MANIFEST,
    SBOM,
    SUMS,
    BundledImage,
    checksums,
    manifest,
)

REFERENCE = "localhost/gpushare:0.1.0"
#: The wheels of a lock with a package for any Python, one for each, and one that only 3.10 needs.
WHEELS = {
    "plain-1.0-py3-none-any.whl": b"plain",
    "fast-2.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": b"fast 3.10",
    "fast-2.0-cp311-cp311-manylinux_2_28_x86_64.whl": b"fast 3.11",
    "fast-2.0-cp311-cp311-manylinux_2_34_x86_64.whl": b"fast 3.11 for a newer C library",
    "fast-2.0-cp311-cp311-musllinux_1_2_x86_64.whl": b"fast 3.11 for another C library",
    "fast-2.0-cp39-abi3-manylinux2014_aarch64.whl": b"fast for any on arm",
    "old_one-3.0-py3-none-any.whl": b"old",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def lock() -> str:
    fast = " ".join(f"--hash=sha256:{sha256(content)}" for name, content in WHEELS.items() if name.startswith("fast"))
    return (
        f"plain==1.0 \\\n    --hash=sha256:{sha256(b'plain')}\nfast==2.0 {fast}\n"
        f"old-one==3.0 ; python_full_version < '3.11' --hash=sha256:{sha256(b'old')}\n"
    )


def files(**more: bytes) -> dict[str, bytes]:
    """What a bundle has, without its checksums. more: name, with __ for /, to content."""
    found = {
        "collection/gpushare-kubernetes-0.1.0.tar.gz": b"collection",
        "chart/gpushare-0.1.0.tgz": b"chart",
        "runtime/gpushare_runtime-0.1.0-py3-none-any.whl": b"runtime",
        "images/gpushare-0.1.0-amd64.tar": b"image",
        "packages/debian-12/x86_64/toolkit_1.20.1-1_amd64.deb": b"package",
        **{f"wheels/{name}": content for name, content in WHEELS.items() if "2_34" not in name and "musl" not in name},
        **{name.replace("__", "/"): content for name, content in more.items()},
    }
    image = BundledImage("images/gpushare-0.1.0-amd64.tar", (REFERENCE,), "amd64", f"sha256:{'0' * 64}")
    found[MANIFEST] = manifest("0.1.0", ["3.10", "3.11"], ["x86_64", "aarch64"], [image])
    found[SBOM] = make.bill("0.1.0", {name: sha256(content) for name, content in found.items()}, [image], lock()).encode()
    return found


def summed(content: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same with its checksums."""
    return {**content, SUMS: checksums({name: sha256(data) for name, data in content.items()})}


def archive(content: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    for name, data in content.items():
        tar.add(packed, name, len(data), [data])
    tar.finish(packed)
    return packed.getvalue()
