# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Bundles: every file is summed and billed, each kind of damage is named, and a host gets what it needs and no more."""

from __future__ import annotations

import io
import json
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import tar
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.received import LIMITS
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle import archive as archives
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.archive import Bundle, opened
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.contents import MANIFEST, SBOM, SIGNATURE, SUMS, BundleError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.lock import LockError, Target, chosen, pins

from unit.fakes.plugins.bundle.bundles import REFERENCE, archive, files, lock, sha256, summed

X11, A11, X10 = Target("3.11", "x86_64"), Target("3.11", "aarch64"), Target("3.10", "x86_64")
KINDS = sorted({name.partition("/")[0] for name in files()})


def bundle(content: dict[str, bytes], key: bytes = b"") -> Bundle:
    return Bundle(io.BytesIO(archive(content)), key)


def test_a_whole_bundle() -> None:
    found = bundle(summed(files()))
    found.check()
    contents = found.contents
    assert (contents.version, contents.pythons, contents.architectures) == ("0.1.0", ("3.10", "3.11"), ("x86_64", "aarch64"))
    assert contents.packages("debian-12", "x86_64") == ["packages/debian-12/x86_64/toolkit_1.20.1-1_amd64.deb"]
    assert contents.packages("debian-12", "aarch64") == contents.packages("debian-13", "x86_64") == []
    named = [(image.file, image.architecture) for image in contents.images if REFERENCE in image.references]
    assert named == [("images/gpushare-0.1.0-amd64.tar", "amd64")]
    assert contents.runtime == sha256(b"runtime")


def test_every_file_is_in_the_checksums_and_in_the_bill_of_materials() -> None:
    content = summed(files())
    lines = dict(reversed(line.split("  ")) for line in content[SUMS].decode().splitlines())
    assert lines == {name: sha256(data) for name, data in content.items() if name != SUMS}
    bill = json.loads(content[SBOM])
    hashes = {one["content"] for part in bill["components"] for one in part["hashes"]}
    assert hashes == {sha256(data) for name, data in content.items() if name not in (SUMS, SBOM)}
    named = {one["value"] for part in bill["components"] for one in part.get("properties", ())} | {
        one["name"] for one in bill["components"]
    }
    assert set(content) - {SUMS, SBOM} <= named
    assert len({one["bom-ref"] for one in bill["components"]}) == len(bill["components"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["removed", "swapped", "truncated", "changed"])
def test_each_kind_of_file_removed_swapped_truncated_or_changed_is_named(kind: str, damage: str) -> None:
    content = summed(files())
    name, other = (
        next(one for one in content if one.startswith(kind)),
        next(one for one in content if not one.startswith(kind) and one != SUMS),
    )
    if damage == "removed":
        del content[name]
    elif damage == "swapped":
        content[name] = content[other]
    elif damage == "truncated":
        content[name] = content[name][:-1]
    else:
        content[name] = bytes([content[name][0] ^ 1]) + content[name][1:]
    with pytest.raises(BundleError) as error:
        bundle(content).check()
    assert name in str(error.value)


def test_a_damaged_file_is_not_handed_to_a_host(tmp_path: Path) -> None:
    content = summed(files())
    name = "wheels/plain-1.0-py3-none-any.whl"
    path, found = bundle(content).part([name], tmp_path)
    with path.open("rb") as stream:
        assert {one: b"".join(tar.content(stream, member)) for one, member in tar.members(stream, LIMITS).items()} == {name: b"plain"}
    assert found == sha256(path.read_bytes())
    content[name] = b"other"
    with pytest.raises(BundleError, match=r"plain-1\.0"):
        bundle(content).part([name], tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": b""}, "'more' is not in SHA256SUMS"),
        ({SUMS: None}, "no SHA256SUMS in the archive"),
        ({SUMS: b"what\n"}, "the line 'what'"),
        ({SUMS: b"x" * (5 << 20)}, "at most 4194304"),
    ],
)
def test_what_does_not_belong_there(change: dict[str, bytes | None], words: str) -> None:
    content = {name: data for name, data in {**summed(files()), **change}.items() if data is not None}
    with pytest.raises(BundleError) as error:
        bundle(content)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 0}, "format 0; expected format 1; make a new one"),
        ({"format": 2}, "use the release of the collection that has made it"),
        ({"format": True}, "format True"),
        ({"version": "../.."}, "found '../..' in version"),
        ({"pythons": ["2.7"]}, "found '2.7' in pythons[0]"),
        (
            {"images": [{"file": "images/none.tar", "references": [], "architecture": "amd64", "id": f"sha256:{'0' * 64}"}]},
            "images/none.tar",
        ),
        ({"images": {}}, "expected a list"),
        ([], "cannot be read"),
    ],
)
def test_a_description_that_cannot_be(change: object, words: str) -> None:
    content = files()
    described = json.loads(content[MANIFEST])
    content[MANIFEST] = json.dumps({**described, **change} if isinstance(change, dict) else change).encode()
    with pytest.raises(BundleError) as error:
        bundle(summed(content))
    assert words in str(error.value)


def test_packages_lie_by_system_and_architecture() -> None:
    for name in ("packages__x.deb", "packages__debian-12__mips__x.deb", "packages__Debian__x86_64__x.deb"):
        with pytest.raises(BundleError, match="packages/SYSTEM/ARCHITECTURE/FILE"):
            bundle(summed(files(**{name: b"x"})))


def test_markers_are_evaluated_for_the_target_and_its_best_wheel_is_taken() -> None:
    wheels = bundle(summed(files())).contents.wheels
    assert [pin.name for pin in pins(lock(), X11)] == ["plain", "fast"]
    assert chosen(lock(), X11, wheels) == (["plain-1.0-py3-none-any.whl", "fast-2.0-cp311-cp311-manylinux_2_28_x86_64.whl"], [])
    assert chosen(lock(), A11, wheels)[0][1] == "fast-2.0-cp39-abi3-manylinux2014_aarch64.whl"
    assert len(chosen(lock(), X10, wheels)[0]) == 3
    found, lacking = chosen(lock(), Target("3.12", "x86_64"), wheels)
    assert (found, [pin.name for pin in lacking]) == (["plain-1.0-py3-none-any.whl"], ["fast"])
    # One whose name says what its content is not.
    assert [one.name for one in chosen(lock(), X11, {**wheels, "plain-1.0-py3-none-any.whl": "0" * 64})[1]] == ["plain"]


def test_markers_of_architecture_and_system() -> None:
    hashed = "--hash=sha256:" + "0" * 64
    text = f"a==1 ; platform_machine == 'aarch64' \\\n    {hashed}\n# no\nb==1 ; sys_platform == 'win32' {hashed}\nC.c==1 {hashed}\n"
    assert [pin.line for pin in pins(text, X11)] == [f"c-c==1 {hashed}"]
    assert [pin.name for pin in pins(text, A11)] == ["a", "c-c"]
    assert [pin.name for pin in pins(text)] == ["a", "b", "c-c"]


@pytest.mark.parametrize("text", ["x>=1 --hash=sha256:" + "0" * 64, "x==1", "-r other.txt", "x==1 --hash=md5:00"])
def test_a_lock_without_exact_versions_or_hashes_is_none(text: str) -> None:
    with pytest.raises(LockError):
        list(pins(text))


def test_no_space_says_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _path: usage(0, 0, 10 << 20))
    with pytest.raises(BundleError, match=r"10 MiB free in .*; expected 65 MiB; free 55 MiB more there"):
        bundle(summed(files())).part(["wheels/plain-1.0-py3-none-any.whl"], tmp_path)


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two keys, first and second; their public halves lie beside it."""
    home = tmp_path_factory.mktemp("g")
    home.chmod(0o700)
    for name in ("first", "second"):
        command = [
            "gpg",
            "--homedir",
            home,
            "-q",
            "--batch",
            "--passphrase",
            "",
            "--quick-gen-key",
            f"{name}@example.org",
            "ed25519",
            "sign",
            "0",
        ]
        subprocess.run(command, check=True, capture_output=True)
        subprocess.run(["gpg", "--homedir", home, "--armor", "--output", home / f"{name}.asc", "--export", name], check=True)
    return home


def signature(home: Path, text: bytes, key: str = "first") -> bytes:
    command = ["gpg", "--homedir", home, "--batch", "--local-user", key, "--armor", "--detach-sign"]
    return subprocess.run(command, input=text, check=True, capture_output=True).stdout


def test_a_key_is_demanded(gpg: Path, tmp_path: Path) -> None:
    content = summed(files())
    key = (gpg / "first.asc").read_bytes()
    with pytest.raises(BundleError, match=r"no signature; expected SHA256SUMS\.asc"):
        bundle(content, key)
    signed = {**content, SIGNATURE: signature(gpg, content[SUMS])}
    bundle(signed, key).check()
    bundle(signed).check()
    (tmp_path / "bundle.tar").write_bytes(archive(signed))
    with opened(str(tmp_path / "bundle.tar"), str(gpg / "first.asc")) as found:
        assert found.contents.version == "0.1.0"
    for other in (signature(gpg, content[SUMS], "second"), signature(gpg, b"other"), b"none"):
        with pytest.raises(BundleError, match="a signature that is not good"):
            bundle({**content, SIGNATURE: other}, key)
    with pytest.raises(BundleError, match="gpushare_bundle_key"):
        bundle(signed, b"no key")


def test_without_gpgv_no_signature_is_good(gpg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = summed(files())
    signed = {**content, SIGNATURE: signature(gpg, content[SUMS])}
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BundleError, match=r"gpgv.*gnupg"):
        bundle(signed, (gpg / "first.asc").read_bytes())


def test_no_file() -> None:
    with pytest.raises(BundleError, match="no /nonexistent that can be read"), opened("/nonexistent"):
        pass
