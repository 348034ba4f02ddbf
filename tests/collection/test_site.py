# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`make docs` and `make release` make what docs/project/release.md lists; their environment comes from a package index."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import address
from pages.build import Assets, loaded_from_elsewhere, problems, relinked
from tree import REPOSITORY, files

SECONDS = 1200


def run(*goal: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *goal, f"PYTHON={sys.executable}"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=SECONDS)


def make(*goal: str) -> None:
    """The goal, which must end well."""
    done = run(*goal)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 by file name, as SHA256SUMS has them."""
    lines = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    return {name: digest for digest, name in lines}


@pytest.mark.timeout(SECONDS)
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere() -> None:
    make("docs")
    html = REPOSITORY / "build/docs/html"
    for page in ("index", "docs/start/quickstart", "docs/operate/troubleshooting", "collections/gpu_node_info_module", "SECURITY"):
        assert (html / f"{page}.html").is_file(), page
    assert "first release" in (html / "CHANGELOG.html").read_text().lower()
    assert list(loaded_from_elsewhere(html)) == []
    search = (html / "searchindex.js").read_text()
    assert "docs/operate/troubleshooting" in search
    assert len(list((html / "collections").glob("*_role.html"))) == len(list((REPOSITORY / "roles").iterdir()))


def test_what_a_page_would_load_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="https://x.example/"></a><script src="//cdn.example/x.js"></script>')
    (tmp_path / "x.css").write_text("@font-face { src: url('https://fonts.example/x.woff2') } a { background: url(x.png) }")
    assert len(list(loaded_from_elsewhere(tmp_path))) == 2
    found = "\n".join(problems(tmp_path, "9.9"))
    assert "no search" in found
    assert "does not show the version 9.9" in found
    parser = Assets()
    parser.feed('<link rel="stylesheet" href="a.css"><link rel="next" href="b.html"><img src="c.png"><a href="d">')
    assert parser.found == ["a.css", "c.png"]


def test_links_lead_to_pages_of_the_site_or_become_text() -> None:
    known = {"docs/README.md", "docs/a/b.md", "docs/a/x/README.md", "docs/a/data.json"}
    text = "[up](../README.md#x) [folder](x) [data](data.json) [code](../../tests/x.py) [far](https://x.example/)\n```\n[b](no.md)\n```\n"
    expected = "[up](../../index.md#x) [folder](x/README.md) [data](data.json) code [far](https://x.example/)\n```\n[b](no.md)\n```\n"
    assert relinked("docs/a/b.md", text, known) == expected
    assert relinked("docs/README.md", "[b](a/b.md)", known, "index.md") == "[b](docs/a/b.md)"
    assert relinked("docs/a/b.md", "> [!NOTE]\n> [b](b.md)\n", known) == "> [b](b.md)\n"


@pytest.mark.timeout(SECONDS)
def test_the_release_has_its_files_and_is_the_same_twice() -> None:
    reason = address.rejected(address.repository())
    if reason:
        done = run("release")
        assert done.returncode != 0
        assert reason in done.stderr
    make("release", "TRIAL=1")
    folder = REPOSITORY / "build/release"
    sums = checksums(folder)
    assert {path.name for path in folder.iterdir()} == {*sums, "SHA256SUMS"}
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sums} == sums
    (tarball,) = folder.glob("gpushare-kubernetes-*.tar.gz")
    with tarfile.open(tarball) as archive:
        assert {"MANIFEST.json", "README.md", "SECURITY.md", "docs/README.md"} <= set(archive.getnames())
        assert len({member.mtime for member in archive.getmembers()}) == 1
    (chart,) = folder.glob("gpushare-*.tgz")
    with tarfile.open(chart) as archive:
        own = {path.removeprefix("charts/") for path in files() if path.startswith("charts/gpushare/")}
        assert {member.name for member in archive.getmembers() if member.isfile()} == own
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "gpushare_runtime/core/protocol.py" in archive.namelist()
    bom = json.loads((folder / "sbom.cdx.json").read_text())
    lock = (REPOSITORY / "files/gpushare_runtime/requirements-kubectl.txt").read_text()
    pins = set(re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, re.M))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert {(one["name"], one["version"]) for one in bom["components"]} == pins
    assert all(one["hashes"] and one["purl"].startswith("pkg:pypi/") for one in bom["components"])
    assert "first release" in (folder / "CHANGELOG.md").read_text().lower()
    make("release", "TRIAL=1")
    assert checksums(folder) == sums
