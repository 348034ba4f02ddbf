# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keys of repositories: what gpg makes is read as gpg reads it, and what is written is what was compared."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages import openpgp
from hypothesis import given
from hypothesis import strategies as st

from unit.golden import Golden

ROOT = Path(__file__).parents[4]
BODY = b"\x04 a public key"
KEY = b"\x9a" + len(BODY).to_bytes(4, "big") + BODY
TRUST, MARKER, PADDING = (bytes([0xC0 | tag, 3]) + b"PGP" for tag in (12, 10, 21))


class Gpg:
    """gpg with a key ring of its own."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self.home = home

    def __call__(self, *argv: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            ["gpg", "--batch", "--quiet", "--no-tty", "--passphrase", "", "--pinentry-mode", "loopback", *argv],
            input=given,
            env=dict(os.environ, GNUPGHOME=str(self.home)),
            stdout=subprocess.PIPE,
            check=True,
        )
        return done.stdout

    def fingerprints(self, keys: bytes) -> list[str]:
        printed = self("--show-keys", "--with-colons", given=keys).decode()
        return re.findall(r"^pub:(?:.*\n)(?:(?!pub:).*\n)*?fpr:{9}([0-9A-F]+):", printed, re.MULTILINE)

    def subkeys(self, keys: bytes) -> dict[str, str]:
        """Fingerprint → what the subkey is for, as gpg names it: e, s, a."""
        printed = self("--show-keys", "--with-colons", given=keys).decode()
        found = re.findall(r"^sub:(?:[^:\n]*:){10}([a-z]*):.*\nfpr:{9}([0-9A-F]+):", printed, re.MULTILINE)
        return {fingerprint: uses for uses, fingerprint in found}


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Gpg:
    if shutil.which("gpg") is None:
        pytest.skip("no gpg")
    made = Gpg(tmp_path_factory.mktemp("gpg") / "home")
    made("--quick-gen-key", "First <first@example.org>", "ed25519", "sign", "never")
    made("--quick-add-key", made.fingerprints(made("--export", "First"))[0], "cv25519", "encr")
    made("--quick-gen-key", "Second <second@example.org>", "rsa2048", "sign", "never")
    return made


@pytest.mark.parametrize("form", ["--armor", "--no-armor"])
@pytest.mark.parametrize("who", [("First",), ("Second",), ("First", "Second")])
def test_fingerprints_are_those_of_gpg(gpg: Gpg, who: tuple[str, ...], form: str) -> None:
    exported = gpg(form, "--export", *who)
    keys = openpgp.read_keys(exported)
    assert [key.fingerprint for key in keys] == gpg.fingerprints(exported)
    assert len(keys) == len(who)


def test_gpg_reads_what_is_written(gpg: Gpg, tmp_path: Path) -> None:
    exported = gpg("--armor", "--export", "First", "Second")
    written = openpgp.armored(openpgp.read_keys(exported))
    together = openpgp.armored_together(openpgp.read_keys(exported))
    assert gpg.fingerprints(written) == gpg.fingerprints(together) == gpg.fingerprints(exported)
    assert (written.count(b"BEGIN"), together.count(b"BEGIN")) == (2, 1)
    # Subkeys, names and signatures too, as long as nobody left one out.
    other = Gpg(tmp_path / "other")
    other("--import", given=written)
    assert other("--export") == gpg("--export", "First", "Second")
    assert openpgp.armored(openpgp.read_keys(written)) == written


def test_a_key_beside_the_expected_one_is_named(gpg: Gpg) -> None:
    first, second = gpg.fingerprints(gpg("--export", "First", "Second"))
    both = openpgp.read_keys(gpg("--armor", "--export", "First") + gpg("--armor", "--export", "Second"))
    openpgp.pinned(both, [second.lower(), " ".join(re.findall("....", first))])
    # A rotated key: one of those that are expected suffices.
    openpgp.pinned(both[:1], [first, second])
    with pytest.raises(openpgp.PublicKeyError, match=second):
        openpgp.pinned(both, [first])
    with pytest.raises(openpgp.PublicKeyError, match="the last 8 or 16 of them are not enough"):
        openpgp.pinned(both, [first[-16:]])


def test_a_subkey_is_written_only_with_a_fingerprint_of_its_own(gpg: Gpg, tmp_path: Path) -> None:
    """A rogue subkey in a file with the right key; to gpg it has a good binding or none, and old rpm does not ask."""
    other = Gpg(tmp_path / "other")
    other("--quick-gen-key", "Publisher <publisher@example.org>", "ed25519", "sign", "never")
    primary = other.fingerprints(other("--export"))[0]
    for algorithm, use in (("cv25519", "encr"), ("ed25519", "sign"), ("rsa2048", "sign")):
        other("--quick-add-key", primary, algorithm, use, "never")
    exported = other("--export")
    signing = [one for one, use in other.subkeys(exported).items() if "s" in use]
    assert len(signing) == 2
    for named in ([], signing[:1], signing):
        written = openpgp.armored(openpgp.pinned(openpgp.read_keys(exported), [primary, *named]))
        assert other.fingerprints(written) == [primary]
        assert sorted(other.subkeys(written)) == sorted(named)
    # Nobody has bound this one to the key.
    rogue = next(packet.body for packet in openpgp._packets(gpg("--export", "Second")) if packet.tag == 6)
    trusted = gpg("--export", "First")
    (first,) = openpgp.pinned(openpgp.read_keys(trusted + new_form(14, rogue)), gpg.fingerprints(trusted))
    assert rogue not in first.whole


def test_the_key_of_nvidias_toolkit_is_the_one_that_the_role_expects() -> None:
    """As https://nvidia.github.io/libnvidia-container/gpgkey has it on 2026-11-29, with a subkey that signed until 2021."""
    data = Path(__file__).with_name("nvidia-container-toolkit.asc").read_bytes()
    # As those who pin the file have it: 3195 bytes.
    assert hashlib.sha256(data).hexdigest() == "c880576d6cf75a48e5027a871bac70fd0421ab07d2b55f30877b21f1c87959c9"
    defaults = yaml.safe_load((ROOT / "roles/nvidia_container_toolkit/defaults/main.yml").read_text())
    (key,) = openpgp.pinned(openpgp.read_keys(data), defaults["gpushare_toolkit_key_fingerprints"])
    assert key.subkeys == ()


def test_what_is_no_public_key_is_rejected(gpg: Gpg) -> None:
    private = gpg("--armor", "--export-secret-keys", "First")
    for data, words in (
        (private, "private key"),
        (gpg("--no-armor", "--export-secret-keys", "First"), "private key"),
        (b"<html>404</html>", "not a list of OpenPGP packets"),
        (b"", "no public key"),
        (gpg("--armor", "--export", "First")[:-200], "damaged"),
        (gpg("--no-armor", "--export", "First")[:-3], "in the middle of a packet"),
        (b"\x98" * (openpgp.LIMIT + 1), "expected at most"),
    ):
        with pytest.raises(openpgp.PublicKeyError, match=words):
            openpgp.read_keys(data)


def new_form(tag: int, body: bytes) -> bytes:
    """RFC 9580, 4.2.1, in the fewest bytes."""
    size = len(body)
    if size < 192:
        return bytes([0xC0 | tag, size]) + body
    if size < 8384:
        return bytes([0xC0 | tag, 192 + (size - 192) // 256, (size - 192) % 256]) + body
    return bytes([0xC0 | tag, 255]) + size.to_bytes(4, "big") + body


def old_form(tag: int, body: bytes) -> bytes:
    """RFC 9580, 4.2.2, in the fewest bytes."""
    kind = 0 if len(body) < 256 else 1 if len(body) < 65536 else 2
    return bytes([0x80 | tag << 2 | kind]) + len(body).to_bytes(1 << kind, "big") + body


@pytest.mark.parametrize("size", [1, 191, 192, 255, 256, 448, 8383, 8384, 65535])
@pytest.mark.parametrize("form", [old_form, new_form])
def test_a_key_is_the_same_in_each_form_of_its_packets(form: Callable[[int, bytes], bytes], size: int) -> None:
    body = b"\x04" + bytes(index % 251 for index in range(size - 1))
    data = form(6, body) + form(14, body) + form(13, b"name") + form(2, b"signed") + form(6, BODY)
    if form is new_form:
        data += form(17, b"picture")
    first, second = openpgp.read_keys(data)
    assert first.fingerprint == hashlib.sha1(b"\x99" + size.to_bytes(2, "big") + body).hexdigest().upper()
    length = size.to_bytes(4, "big")
    # A name is the key's, and what follows it, too.
    assert first.packets == b"\x9a" + length + body + b"\xb6\0\0\0\x04name" + b"\x8a\0\0\0\x06signed"
    assert [one.packets for one in first.subkeys] == [b"\xba" + length + body]
    assert first.whole == first.packets + first.subkeys[0].packets
    assert second.whole == (KEY + b"\xd1\xff\0\0\0\x07picture" if form is new_form else KEY)


def test_the_sample_key_of_version_6_has_the_fingerprint_of_the_standard() -> None:
    """RFC 9580, appendix A.3."""
    body = bytes.fromhex("0663877fe31b00000020f94da7bb48d60a61e567706a6587d0331999bb9d891a08242ead84543df895a3")
    (key,) = openpgp.read_keys(new_form(6, body))
    assert key.fingerprint == "CB186C4F0609A697E4D52DFA6C722B0C1F1E27C18A56708F6525EC27BAD9ACC9"


def test_what_means_nothing_to_others_is_not_written() -> None:
    alone = openpgp.read_keys(KEY)
    assert openpgp.read_keys(MARKER + KEY + TRUST + PADDING) == alone
    assert alone[0].whole == KEY


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (old_form(2, b"signed") + KEY, "of kind 2"),
        (old_form(14, BODY) + KEY, "of kind 14"),
        (KEY + old_form(1, b"x"), "of kind 1 "),
        (KEY + new_form(18, b"x"), "of kind 18"),
        (KEY + old_form(5, BODY), "private key"),
        (KEY + old_form(7, BODY), "private key"),
        (KEY + new_form(6, b""), "version 0"),
        (new_form(6, b"\x03" + BODY), "version 3"),
        (new_form(6, b"\x05" + BODY), "version 5"),
        (new_form(6, b"\x04" + bytes(2**16 - 1)), "version 4 or 6"),
        # The first bit says that a packet begins.
        (b"\x19\0" + bytes([len(BODY)]) + BODY, "not a list of OpenPGP packets"),
        (bytes([0x80 | 6 << 2 | 3]) + BODY, "without a length"),
        (b"\xc6\xe0\0\0\0" + bytes([len(BODY)]) + BODY, "in pieces"),
        (b"\xc6\xe0\0" + b"\x04" + bytes(8383), "in pieces"),
        (b"\xc6\xfe\0\0\0" + bytes([len(BODY)]) + BODY, "in pieces"),
        *((KEY + cut, "in the middle of a packet") for cut in (b"\x99", b"\x99\0", b"\x9a\0\0\0", b"\xc6", b"\xc6\xc0", b"\xc6\xff\0\0\0")),
    ],
)
def test_what_could_hide_another_key_is_rejected(data: bytes, words: str) -> None:
    with pytest.raises(openpgp.PublicKeyError, match=words):
        openpgp.read_keys(data)


def test_a_block_of_text_with_a_stranger_in_it_is_damaged() -> None:
    text = openpgp.armored(openpgp.read_keys(KEY))
    line = text.splitlines()[2]
    with pytest.raises(openpgp.PublicKeyError, match="damaged"):
        openpgp.read_keys(text.replace(line, line[:8] + b"=" + line[8:]))


def test_a_file_of_half_a_mebibyte_is_read_and_a_longer_one_is_not(golden: Golden) -> None:
    rest = 512 * 1024 - len(KEY)
    whole = KEY + b"\xcc\xff" + (rest - 6).to_bytes(4, "big") + bytes(rest - 6)
    assert openpgp.read_keys(whole) == openpgp.read_keys(KEY)
    with golden.raised(openpgp.PublicKeyError):
        openpgp.read_keys(whole[: len(KEY)] + b"\xcc\xff" + (rest - 5).to_bytes(4, "big") + bytes(rest - 5))


@pytest.mark.parametrize("digits", [40, 64])
def test_a_fingerprint_is_read_as_people_write_it(digits: int) -> None:
    plain = ("0123456789ABCDEF" * 4)[:digits]
    fours = re.findall("....", plain)
    for text in (plain, plain.lower(), "0x" + plain, "0X" + plain.lower(), " ".join(fours), ":".join(fours), f"\t{plain}\n"):
        assert openpgp.fingerprint(text) == plain
    for text in ("", "0x", plain[1:], plain + "0", plain[:-16], "0x" + plain[-16:], "G" + plain[1:]):
        with pytest.raises(openpgp.PublicKeyError):
            openpgp.fingerprint(text)


@given(st.binary(max_size=300))
def test_anything_else_is_an_error_or_keys(data: bytes) -> None:
    try:
        keys = openpgp.read_keys(data)
    except openpgp.PublicKeyError:
        return
    assert [key.fingerprint for key in openpgp.read_keys(openpgp.armored(keys))] == [key.fingerprint for key in keys]


def test_a_key_file_is_a_text_a_path_or_what_an_address_has(tmp_path: Path) -> None:
    def fetch(url: str) -> bytes:
        if url.endswith("gone"):
            raise OSError("HTTP Error 404: Not Found " + "x" * 300)
        return url.encode()

    path = tmp_path / "key.asc"
    path.write_bytes(b"x" * (openpgp.LIMIT + 9))
    assert openpgp.key_file("-----BEGIN PGP", fetch) == b"-----BEGIN PGP"
    assert len(openpgp.key_file(str(path), fetch)) == openpgp.LIMIT + 1
    for url in ("https://a/k", "http://a/k", "file:///k"):
        assert openpgp.key_file(url, fetch) == url.encode()
    for other in ("key.asc", "ftp://a/k", "x" * 90):
        with pytest.raises(Rejected, match="expected its text, a URL or an absolute path") as rejected:
            openpgp.key_file(other, fetch)
        assert repr(other[:80]) in str(rejected.value)
    with pytest.raises(Rejected, match=r"the key https://a/y{190} cannot be read \(OSError: HTTP Error 404: Not Found x{174}\); nothing"):
        openpgp.key_file("https://a/" + "y" * 200 + "gone", fetch)
    with pytest.raises(Rejected, match="No such file"):
        openpgp.key_file(str(tmp_path / "none"), fetch)
