# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The container image: what is in it and where, and its archive. tests/container_image/test_image.py builds it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import tomllib  # type: ignore[import-not-found,unused-ignore]
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.lock import pins

from gpushare_lab.archive import Image, Text, write_image, write_layer
from image import layout
from image.layout import kept, own_members, target, wheel_place
from tree import REPOSITORY

RUNTIME = REPOSITORY / "files/gpushare_runtime"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("./usr/bin/python3.11", "usr/bin/python3.11"),
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/share/doc/libc6/copyright", "usr/share/doc/libc6/copyright"),
        ("./usr/share/doc/libgcc-s1", "usr/share/doc/libgcc-s1"),
        ("./usr/lib/os-release", "usr/lib/os-release"),
        ("./etc/python3.11/sitecustomize.py", "etc/python3.11/sitecustomize.py"),
        ("./usr/share/doc/libc6/changelog.Debian.gz", None),
        ("./usr/lib/x86_64-linux-gnu/gconv/IBM1047.so", None),
        ("./usr/lib/python3.11/ensurepip/__init__.py", None),
        ("./usr/lib/python3.11/lib2to3/main.py", None),
        ("./bin/sh", None),
        ("./usr/bin/bash", None),
        ("./etc/shadow", None),
        ("./usr/lib/../../etc/shadow", None),
        ("/usr/lib/x", None),
        ("./", None),
    ],
)
def test_what_is_kept_of_a_package(name: str, place: str | None) -> None:
    assert kept(name) == place


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("rich/table.py", "rich/table.py"),
        ("x-1.0.data/purelib/x.py", "x.py"),
        ("x-1.0.data/scripts/x", None),
        ("x-1.0.data/headers/x.h", None),
        ("../../etc/passwd", None),
        ("/etc/passwd", None),
        ("rich/", None),
    ],
)
def test_what_is_kept_of_a_wheel(name: str, place: str | None) -> None:
    assert wheel_place(name) == (place and f"opt/gpushare/lib/python3.11/site-packages/{place}")


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_locks_of_the_runtime_have_all_that_the_image_needs(architecture: str) -> None:
    daemons, of_kubectl = (
        [pin.name for pin in pins((RUNTIME / f"{name}.txt").read_text(), target(architecture))]
        for name in ("requirements", "requirements-kubectl")
    )
    assert {"aiohttp", "grpcio", "nvidia-ml-py", "pyyaml", "typing-extensions"} <= set(daemons)
    assert set(layout.OF_KUBECTL) <= set(of_kubectl)
    assert len(set(daemons)) == len(daemons)
    assert f"manylinux_2_36_{layout.MACHINES[architecture]}" in target(architecture).platforms


def test_every_program_of_the_runtime_is_a_script_below_our_folder() -> None:
    scripts = tomllib.loads((RUNTIME / "pyproject.toml").read_text())["project"]["scripts"]
    members = own_members(scripts)
    for name, entry in scripts.items():
        member = members[f"opt/gpushare/bin/{name}"]
        assert isinstance(member, Text)
        # take_over.yml knows our processes by their first word; nobody's environment changes what is imported.
        assert member.text.startswith("#!/opt/gpushare/bin/python3 -I\n")
        assert f"from {entry.replace(':', ' import ')}\n" in member.text
        assert member.mode == 0o755


def test_the_containerfile_runs_it_in_the_same_way() -> None:
    text = (REPOSITORY / "tools/image/Containerfile").read_text()
    environment = dict(word.split("=") for word in re.findall(r"^ENV (.*)$", text, re.M)[0].split())
    assert environment == layout.ENVIRONMENT
    assert re.findall(r"^USER (.*)$", text, re.M) == [f"{layout.USER}:{layout.USER}"]
    assert json.loads(re.findall(r"^CMD (.*)$", text, re.M)[0]) == list(layout.COMMAND)


def test_the_archive_is_one_for_every_tool_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        layer = tmp_path / f"layer-{name}"
        write_layer(layer, {"b": Text("2"), "a/x": Text("1")})
        image = Image(["localhost/x:1"], layer, ["x"], {"A": "b"}, "arm64", "1:1", {"l": "m"})
        digests.append(write_image(tmp_path / name, image))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]

    def blob(described: dict[str, Any]) -> bytes:
        data = files[f"blobs/{described['digest'].replace(':', '/')}"]
        assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (described["size"], described["digest"])
        return data

    [of_image] = json.loads(files["index.json"])["manifests"]
    assert (of_image["digest"], of_image["annotations"]["io.containerd.image.name"]) == (digests[0], "localhost/x:1")
    manifest = json.loads(blob(of_image))
    config, [layer_blob] = json.loads(blob(manifest["config"])), [blob(one) for one in manifest["layers"]]
    plain = gzip.decompress(layer_blob)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    assert (config["architecture"], config["config"]) == ("arm64", {"Cmd": ["x"], "Env": ["A=b"], "Labels": {"l": "m"}, "User": "1:1"})
    with tarfile.open(fileobj=io.BytesIO(plain)) as layer_files:
        assert layer_files.getnames() == ["a", "a/x", "b"]
    [of_docker] = json.loads(files["manifest.json"])
    assert of_docker["RepoTags"] == ["localhost/x:1"]
    assert {of_docker["Config"], *of_docker["Layers"]} <= files.keys()
