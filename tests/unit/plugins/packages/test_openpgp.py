# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keys of repositories: what gpg makes is read as gpg reads it, and what is written is what was compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages import openpgp
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(shutil.which("gpg") is None, reason="no gpg")


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


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Gpg:
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
    # Subkeys, names and signatures too.
    other = Gpg(tmp_path / "other")
    other("--import", given=written)
    assert other("--export") == gpg("--export", "First", "Second")
    assert openpgp.armored(openpgp.read_keys(written)) == written


def test_a_key_beside_the_expected_one_is_named(gpg: Gpg) -> None:
    first, second = gpg.fingerprints(gpg("--export", "First", "Second"))
    both = openpgp.read_keys(gpg("--armor", "--export", "First") + gpg("--armor", "--export", "Second"))
    openpgp.check(both, [second.lower(), " ".join(re.findall("....", first))])
    # A rotated key: one of those that are expected suffices.
    openpgp.check(both[:1], [first, second])
    with pytest.raises(openpgp.KeyError_, match=second):
        openpgp.check(both, [first])
    with pytest.raises(openpgp.KeyError_, match="the last 8 or 16 of them are not enough"):
        openpgp.check(both, [first[-16:]])


def test_what_is_no_public_key_is_rejected(gpg: Gpg) -> None:
    private = gpg("--armor", "--export-secret-keys", "First")
    for data, words in (
        (private, "private key"),
        (gpg("--no-armor", "--export-secret-keys", "First"), "private key"),
        (b"<html>404</html>", "no list of OpenPGP packets"),
        (b"", "no public key"),
        (gpg("--armor", "--export", "First")[:-200], "damaged"),
        (gpg("--no-armor", "--export", "First")[:-3], "in the middle of a packet"),
        (b"\x98" * (openpgp.LIMIT + 1), "expected at most"),
    ):
        with pytest.raises(openpgp.KeyError_, match=words):
            openpgp.read_keys(data)


@given(st.binary(max_size=300))
def test_anything_else_is_an_error_or_keys(data: bytes) -> None:
    try:
        keys = openpgp.read_keys(data)
    except openpgp.KeyError_:
        return
    assert [key.fingerprint for key in openpgp.read_keys(openpgp.armored(keys))] == [key.fingerprint for key in keys]
