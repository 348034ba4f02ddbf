# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A stand-in for NVIDIA-Linux-*.run: a script with an archive at its end, whose options, order and messages are those of nvidia-installer.

As the source of nvidia-installer has it: an option that its branch does not know ends it; a module that is loaded and in use ends it unless
it may install beside; an earlier installation is removed first; only then it looks for dkms; nvidia-uninstall goes by a list of files. The
module is a file.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Final

#: What makes the next installation end: one word in this file of the host.
FAULT: Final = "/root/installer-fault"
_UNINSTALL = """#!/bin/sh
test "$*" = --silent || { echo "nvidia-uninstall: invalid option: \\"$*\\"" >&2; exit 1; }
while read -r path; do rm -f "$path"; done < /var/lib/nvidia/log
rm -rf /var/lib/nvidia "/lib/modules/$(uname -r)/updates" "/lib/modules/$(uname -r)/modules.dep"
rm -f /usr/bin/nvidia-installer /usr/bin/nvidia-uninstall
ldconfig
"""
_SCRIPT = r"""#!/bin/sh
log=/var/log/nvidia-installer.log beside= silent=
for word in "$@"; do
  case $word in
    --silent) silent=1 ;;
    --dkms|--no-x-check|--no-cc-version-check@OPTIONS@) ;;
    --log-file-name=*) log=${word#*=} ;;
    --allow-installation-with-running-driver)
      test -n "@BESIDE@" || { echo "nvidia-installer: unrecognized option: \"$word\"" >&2; exit 1; }
      beside=1 ;;
    *) echo "nvidia-installer: unrecognized option: \"$word\"" >&2; exit 1 ;;
  esac
done
test -n "$silent" || { echo "ERROR: Unable to find a user interface" >&2; exit 1; }
fail() { echo "ERROR: $1" | tee -a "$log" >&2; exit 1; }
echo "nvidia-installer log file '$log'" > "$log"
loaded=
if test -e /proc/driver/nvidia/version; then
  loaded=1
  test -n "$beside" || fail "An NVIDIA kernel module 'nvidia' appears to already be loaded in your kernel."
fi
release=$(uname -r)
test -e "/usr/src/linux-headers-$release/Makefile" || fail "Unable to find the kernel source tree for the currently running kernel."
test "$(cat @FAULT@ 2>/dev/null)" != build || fail "Unable to build the NVIDIA kernel module: cc1: out of memory"
test ! -x /usr/bin/nvidia-uninstall || /usr/bin/nvidia-uninstall --silent
command -v dkms > /dev/null || fail "Failed to find dkms on the system!"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tail -n +@LINES@ "$0" | tar -xz -C "$work"
mkdir -p "/lib/modules/$release/updates/dkms" /var/lib/nvidia
cp "$work/nvidia.ko" "/lib/modules/$release/updates/dkms/nvidia.ko"
echo "updates/dkms/nvidia.ko:" > "/lib/modules/$release/modules.dep"
cp "$work/nvidia-uninstall" /usr/bin/nvidia-uninstall
ln -sf nvidia-uninstall /usr/bin/nvidia-installer
libraries=/usr/lib/x86_64-linux-gnu
printf '%s\n' "$libraries/libnvidia-ml.so.@VERSION@" "$libraries/libnvidia-ml.so.1" /usr/bin/nvidia-smi > /var/lib/nvidia/log
test "$(cat @FAULT@ 2>/dev/null)" != killed || kill -9 $$
cp "$work/libnvidia-ml.so.@VERSION@" "$libraries/"
ln -sf "libnvidia-ml.so.@VERSION@" "$libraries/libnvidia-ml.so.1"
cp "$work/nvidia-smi" /usr/bin/nvidia-smi
ldconfig
test -n "$loaded" || modprobe nvidia
echo "-> Installation of the NVIDIA Accelerated Graphics Driver (version: @VERSION@) is now complete." >> "$log"
exit 0
"""
_OPEN, _PROPRIETARY = "Dual MIT/GPL", "NVIDIA"


def write(path: Path, version: str, nvidia_smi: Path, library: Path | None = None) -> Path:
    """The installer of this version. library: libnvidia-ml, else a stand-in."""
    branch = int(version.split(".")[0])
    options = "".join(
        f"|{option}" for option, known in (("-m=kernel-open", 515 <= branch < 560), ("--kernel-module-type=*", branch >= 560)) if known
    )
    named = {"@VERSION@": version, "@OPTIONS@": options, "@BESIDE@": "1" if branch >= 545 else "", "@FAULT@": FAULT}
    text = _SCRIPT
    for name, value in named.items():
        text = text.replace(name, value)
    text = text.replace("@LINES@", str(text.count("\n") + 1))
    with path.open("wb") as run_file:
        run_file.write(text.encode())
        with tarfile.open(fileobj=run_file, mode="w:gz") as archive:
            _add(archive, "nvidia.ko", f"\x7fELF\0license={_OPEN if branch >= 560 else _PROPRIETARY}\0version={version}\0".encode())
            _add(archive, "nvidia-uninstall", _UNINSTALL.encode())
            _add(archive, f"libnvidia-ml.so.{version}", library.read_bytes() if library else b"stub")
            _add(archive, "nvidia-smi", nvidia_smi.read_bytes())
    return path


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))
