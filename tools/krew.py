# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare` for krew: an archive with the wheel, its locked dependencies and a launcher, and the manifest of the plugin.

krew copies files and runs nothing. So the launcher makes a virtual environment at its first call, beside itself.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Final

import yaml

from tree import packed

ROOT: Final = Path(__file__).resolve().parent.parent
LAUNCHER: Final = """\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
# kubectl gpushare as krew installs it. GPUSHARE_PYTHON: the Python to use, 3.10 or newer.
set -eu
here=$(dirname "$(readlink -f "$0")")
if [ ! -d "$here/env" ]; then
  python=${GPUSHARE_PYTHON:-python3}
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "kubectl gpushare: expected Python 3.10 or newer as $python; set GPUSHARE_PYTHON to one" >&2
    exit 1
  fi
  echo "kubectl gpushare: first call: installing its Python packages into $here" >&2
  new=$here/env.$$
  trap 'rm -rf "$new"' EXIT
  "$python" -m venv "$new" >&2
  "$new/bin/python" -m pip install --quiet --require-hashes --only-binary :all: -r "$here/requirements.txt" >&2
  "$new/bin/python" -m pip install --quiet --no-deps "$here"/gpushare_runtime-*.whl >&2
  [ -d "$here/env" ] || mv "$new" "$here/env"
  trap - EXIT
fi
exec "$here/env/bin/python" -m gpushare_runtime.kubectl_program.main "$@"
"""


def archive(wheel: tuple[str, bytes], lock: str, when: datetime) -> bytes:
    """A .tar.gz, the same for the same content. wheel: name and bytes; lock: requirements with hashes."""
    content = {
        "LICENSE": ((ROOT / "LICENSES/Apache-2.0.txt").read_bytes(), 0o644),
        wheel[0]: (wheel[1], 0o644),
        "kubectl-gpushare": (LAUNCHER.encode(), 0o755),
        "requirements.txt": (lock.encode(), 0o644),
    }
    return packed(content, when)


def manifest(name: str, data: bytes, version: str, repository: str) -> str:
    """What `kubectl krew install --manifest=` reads. name, data: of the archive; repository: where the releases are."""
    systems = [("linux", "amd64"), ("linux", "arm64"), ("darwin", "amd64"), ("darwin", "arm64")]
    platforms = [
        {
            "selector": {"matchLabels": {"os": system, "arch": machine}},
            "uri": f"{repository}/releases/download/v{version}/{name}",
            "sha256": hashlib.sha256(data).hexdigest(),
            "bin": "kubectl-gpushare",
        }
        for system, machine in systems
    ]
    spec = {
        "version": f"v{version}",
        "homepage": repository,
        "shortDescription": "Show who has how much of which GPU",
        "description": "Shows shares of GPU memory by node, GPU and pod, and why a pod waits for a GPU.\n"
        "Needs gpushare.kubernetes in the cluster, and Python 3.10 or newer here.\n",
        "platforms": platforms,
    }
    made = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": {"name": "gpushare"}, "spec": spec}
    return str(yaml.safe_dump(made, sort_keys=False))
