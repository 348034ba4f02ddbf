# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host below a folder, with the files of a driver and a toolkit, and a nvidia-ctk that writes what the real one would for its GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpushare_runtime.device_plugin.host.own_spec import HOOKS, HostFiles

# As nvidia-ctk 1.20.1 does it: paths below the roots that it is given, hooks by name, one device for each id.
PROGRAM = """\
#!{python} -IS
import json, os, pathlib, sys
options = [word.partition("=")[::2] for word in sys.argv if word.startswith("--")]
one = dict(options)
gpus = json.loads(pathlib.Path({state!r}).read_text())
if isinstance(gpus, str):
    sys.exit(gpus)
asked = [value for name, value in options if name == "--device-id"]
if set(asked) - set(gpus):
    sys.exit('time="now" level=error msg="failed to get device handle from UUID: Not Found"')
# It writes a file before it prints.
pathlib.Path(os.environ["TMPDIR"], "nvcdi-spec").touch(exist_ok=False)
def hook(*words):
    return dict(hookName="createContainer", path=one["--nvidia-cdi-hook-path"], args=["nvidia-cdi-hook", *words])
root, dev = one["--driver-root"], one["--dev-root"]
lib = "usr/lib64/libcuda.so." + {version!r}
mount = dict(hostPath=root.rstrip("/") + "/" + lib, containerPath="/" + lib)
common = dict(deviceNodes=[dict(path="/dev/nvidiactl", hostPath=dev + "/dev/nvidiactl")], mounts=[mount])
common["hooks"] = [hook("update-ldcache", "--folder=" + root), hook("of-a-newer-release")]
limits = lambda uuid: hook("chmod", "--driver-root", root, "--gpu-id", uuid)
node = lambda name, minor: dict(path=name, hostPath=dev + name, major=195, minor=minor)
def nodes(minor, *caps):
    return [node("/dev/nvidia%d" % minor, minor), *(node("/dev/nvidia-caps/nvidia-cap%d" % cap, cap) for cap in caps)]
devices = [dict(name=uuid, containerEdits=dict(deviceNodes=nodes(*gpus[uuid]), hooks=[limits(uuid)])) for uuid in asked or gpus]
kind = one["--vendor"] + "/" + one["--class"]
print(json.dumps(dict(cdiVersion="0.5.0", kind=kind, devices=devices, containerEdits=common)))
"""


class CtkHost:
    """root: below which the host is mounted; programs: a folder for PATH."""

    def __init__(self, folder: Path, *, driver: str = "/run/nvidia/driver") -> None:
        self.root, self.programs, self._state = folder / "host", folder / "bin", folder / "gpus.json"
        self.files = HostFiles(self.root)
        self.programs.mkdir()
        library = self.files.at(driver) / "usr/lib64/libnvidia-ml.so.1"
        hook = self.files.at(HOOKS[0])
        for path in (library, hook):
            path.parent.mkdir(parents=True)
        library.touch()
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        hook.with_name(hook.name + ".real").write_bytes(b"\x7fELF\0chmodupdate-ldcache\0")
        self.driver("535.261.03")

    def driver(self, version: str) -> None:
        program = self.programs / "nvidia-ctk"
        program.write_text(PROGRAM.format(python=sys.executable, state=str(self._state), version=version))
        program.chmod(0o755)

    def gpus(self, minors: dict[str, int] | dict[str, tuple[int, ...]] | str) -> None:
        """UUID → minor of the GPUs that NVML answers for, with the numbers of a MIG instance; a text is why it does not answer."""
        known = minors if isinstance(minors, str) else {uuid: (one,) if isinstance(one, int) else one for uuid, one in minors.items()}
        self._state.write_text(json.dumps(known))
