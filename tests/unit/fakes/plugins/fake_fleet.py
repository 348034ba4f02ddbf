# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control plane and two GPU nodes that are fit, as folders; `python -m unit.fakes.plugins.fake_fleet FOLDER` makes them."""

from __future__ import annotations

import sys
from pathlib import Path

from unit.fakes.plugins.fake_root import FakeRoot, control_plane, debian, gpu, kubelet

NODES = ("gpu1", "gpu2")


def make_fleet(folder: Path) -> dict[str, FakeRoot]:
    """The hosts by name, made below `folder`."""
    roots = {name: debian(FakeRoot(folder / name)) for name in ("cp1", *NODES)}
    for name, root in roots.items():
        kubelet(root, "--hostname-override", name)
    control_plane(roots["cp1"])
    for name in NODES:
        gpu(roots[name])
    return roots


if __name__ == "__main__":
    make_fleet(Path(sys.argv[1]))
