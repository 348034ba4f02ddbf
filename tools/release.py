# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files of a release, as docs/project/release.md lists them: `make release`, or `python tools/release.py FOLDER [--key KEYID]`.

It runs in the environment of requirements/docs.txt. The same commit makes the same files, but for the signature.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Final

import yaml
from cyclonedx.model.bom import Bom

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".collections"))
sys.path.insert(0, str(ROOT / "tools"))

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle import sbom  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.collection import normal  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.lock import pins  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import looked_up  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._wheel import build_wheel  # noqa: E402

import address  # noqa: E402
import krew  # noqa: E402
import outdated  # noqa: E402
from tree import chart, copy, files  # noqa: E402

RUNTIME: Final = "files/gpushare_runtime"
LOCK: Final = f"{RUNTIME}/requirements-kubectl.txt"
BIN: Final = Path(sys.executable).parent


def commit_time() -> datetime:
    """When the commit was made; SOURCE_DATE_EPOCH comes first."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    else:
        command = ["git", "-c", f"safe.directory={ROOT}", "log", "-1", "--format=%ct"]
        seconds = int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout)
    return datetime.fromtimestamp(seconds, timezone.utc)


def version() -> str:
    """The collection's, which must be the runtime's as well."""
    ours = str(yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"])
    theirs = re.search(r'^version = "(.+)"$', (ROOT / RUNTIME / "pyproject.toml").read_text(), re.MULTILINE)
    if theirs is None or theirs[1] != ours:
        sys.exit(f"galaxy.yml has version {ours}, {RUNTIME}/pyproject.toml {theirs and theirs[1]}; expected the same in both")
    return ours


def bill_of_materials(number: str, when: datetime) -> str:
    """CycloneDX of the runtime with its locked dependencies. A lock has a hash for each file of a package, and one of them is installed."""
    lock = (ROOT / LOCK).read_text()
    text = sbom.bill(number, [sbom.pypi(pin.name, pin.version, sorted(pin.hashes)) for pin in pins(lock)], lock, when)
    # CycloneDX's own library reads it.
    Bom.from_json(json.loads(text))
    return text


def tarball(tree: Path, folder: Path, when: datetime) -> Path:
    """The collection, built by ansible-galaxy, with the time of the commit on every member."""
    command = [str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(folder), str(tree)]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    (path,) = folder.glob("*.tar.gz")
    seconds = int(when.timestamp())
    path.write_bytes(gzip.compress(normal(path, seconds), mtime=seconds))
    return path


def changelog(tree: Path, number: str, when: datetime) -> str:
    """CHANGELOG.md as antsibull-changelog makes it from the fragments, in a copy of the tree."""
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tree / "none"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [str(BIN / "antsibull-changelog"), "release", "--version", number, "--date", when.strftime("%Y-%m-%d")]
    # It sees a collection by its folders.
    place = tree / "of/ansible_collections/gpushare/kubernetes"
    copy(files(), place)
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"antsibull-changelog failed:\n{done.stdout}{done.stderr}")
    return (place / "CHANGELOG.md").read_text()


def why_not() -> list[str]:
    """The reasons against a release, a sentence each."""
    rejected = address.rejected(address.repository())
    facts = looked_up.too_old(presets.read_days(), date.today())
    return [*address.problems(), *filter(None, [rejected]), *outdated.problems(), *facts]


def release(folder: Path, key: str = "", *, trial: bool = False) -> list[Path]:
    """Write all files; those that are named in SHA256SUMS and that file itself. trial: they are not published, and have no images."""
    if not trial and (reasons := why_not()):
        sys.exit("\n".join(reasons))
    number, when = version(), commit_time()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        copy(files(), tree)
        tarball(tree, folder, when)
        (folder / "CHANGELOG.md").write_text(changelog(Path(scratch) / "changes", number, when))
    wheel = build_wheel(ROOT / RUNTIME)
    (folder / wheel.filename).write_bytes(wheel.content)
    plugin, name = krew.archive((wheel.filename, wheel.content), (ROOT / LOCK).read_text(), when), f"kubectl-gpushare-{number}.tar.gz"
    (folder / name).write_bytes(plugin)
    (folder / f"gpushare-{number}.tgz").write_bytes(chart(when))
    for architecture in () if trial else ("amd64", "arm64"):
        # In an environment of its own, as `make image` has it.
        own = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / one) for one in ("tools", "tools/lab", RUNTIME))}
        command = [str(ROOT / ".venv/bin/python"), "-m", "image", str(folder), "--architecture", architecture]
        subprocess.run(command, check=True, timeout=1800, cwd=ROOT, env=own)
    repository = str(yaml.safe_load((ROOT / "galaxy.yml").read_text())["repository"])
    (folder / "gpushare.yaml").write_text(krew.manifest(name, plugin, number, repository))
    (folder / "sbom.cdx.json").write_text(bill_of_materials(number, when))
    made = sorted(folder.iterdir())
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made))
    if key:
        subprocess.run(["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", str(sums)], check=True, timeout=120)
    return [*made, sums]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the files of a release.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--key", default="", help="sign SHA256SUMS with this key of gpg")
    parser.add_argument("--trial", action="store_true", help="files that are not published: with the placeholder for the address")
    given = parser.parse_args()
    for path in release(given.folder, given.key, trial=given.trial):
        print(f"{path.stat().st_size:9} {path.name}")
    json.loads((given.folder / "sbom.cdx.json").read_text())


if __name__ == "__main__":
    main()
