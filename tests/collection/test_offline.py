# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/operate/offline.md: the installed release makes a bundle, which has all that a host needs, and the release itself."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import tar
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.received import LIMITS
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.archive import opened
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.contents import SBOM, SUMS, WHEELS

from docs.pages import steps
from docs.tarball import COLLECTION, release

PAGE, TEST = "docs/operate/offline.md", "tests/collection/test_offline.py"
#: Nothing listens there: what connects to a server by HTTP fails.
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
#: Of what one host gets.
MOST_MB_OF_WHEELS = 40
SECONDS = 900
BUNDLE = "gpushare-bundle-0.1.0.tar"


def run(folder: Path, *command: str, **more: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
    environment: Mapping[str, str] = (
        own | {"HOME": str(folder / "home"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"} | more
    )
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.timeout(2 * SECONDS)
def test_a_bundle_is_made_carried_and_used_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    run(tmp_path, "ansible-galaxy", "collection", "install", str(release(tmp_path)), **NOWHERE)
    make, sha256sum, unpack, install = (step.command for step in steps(PAGE, TEST))
    # The page's Python and architecture, and those of this machine.
    here = {"gpushare_bundle_pythons": ["3.11", "{}.{}".format(*sys.version_info)], "gpushare_bundle_architectures": [os.uname().machine]}
    output = run(tmp_path, "bash", "-euc", f"{make} -e '{json.dumps(here)}'")
    shown = run(tmp_path, "bash", "-euc", sha256sum).split()[0]
    assert shown in output
    assert "changed=1" in output

    # Once more: not a byte differs.
    assert "changed=0" in run(tmp_path, "bash", "-euc", f"{make} -e '{json.dumps(here)}'")
    assert hashlib.sha256((tmp_path / BUNDLE).read_bytes()).hexdigest() == shown

    with opened(str(tmp_path / BUNDLE)) as bundle, (tmp_path / BUNDLE).open("rb") as stream:
        bundle.check()
        members = tar.members(stream, LIMITS)
        bill = json.loads(b"".join(tar.content(stream, members[SBOM])))
    hashes = {one["content"] for part in bill["components"] for one in part["hashes"]}
    sums = bundle.contents.sums
    assert set(members) == {*sums, SUMS}
    assert {sums[name] for name in sums if name != SBOM} <= hashes
    assert sum(members[f"{WHEELS}{name}"].size for name in bundle.contents.wheels) < 2 * MOST_MB_OF_WHEELS * 10**6

    # On the other side: no network, and the collection from the bundle.
    for command in (unpack, install):
        run(tmp_path, "bash", "-euc", command, **NOWHERE)
    assert (tmp_path / COLLECTION / "MANIFEST.json").is_file()
    play = [{"hosts": "all", "gather_facts": False, "roles": ["gpushare.kubernetes.python_environment"]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    settings = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "gpushare_python": sys.executable,
        "gpushare_install_dir": str(tmp_path / "opt"),
        "gpushare_bundle": str(tmp_path / BUNDLE),
    }
    for group in ("kube_control_plane", "gpu_nodes"):
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": {group: {"hosts": {"here": settings}}}}}))
        assert "changed=1" in run(tmp_path, "ansible-playbook", "-i", "hosts.json", "play.yml", **NOWHERE)
    programs = list((tmp_path / "opt").glob("*/bin/gpushare-device-plugin"))
    assert len(programs) == 2
    for program in programs:
        run(tmp_path, str(program), "--help")
