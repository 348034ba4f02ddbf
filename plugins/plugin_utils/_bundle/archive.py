# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a bundle from its file: whole once, to check it, and the parts that a host gets. Only bytes whose sum is right are handed on."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...module_utils._formats import tar
from ...module_utils._host.received import LIMITS
from ...module_utils._packages import openpgp
from .contents import MANIFEST, MOST_TEXT, SIGNATURE, SUMS, BundleError, Contents, parse

_COPY = "copy the file again, and compare its SHA-256 with that which the playbook bundle printed"
_GPGV_SECONDS = 60
#: Of what may not fill up while a part is written, in bytes.
SPARE = 64 << 20
#: Where the content of a file comes from.
Source = Path | bytes


class Bundle:
    """A bundle whose file is open. contents: what it says that it has; BundleError where that cannot be."""

    def __init__(self, stream: BinaryIO, key: bytes = b"") -> None:
        """key: the public keys of which one must have signed it; empty for any bundle."""
        self._stream = stream
        with _damage():
            self._members = tar.members(stream, LIMITS)
        summed = self._text(SUMS)
        if key:
            self._check_signature(summed, key)
        self.contents: Contents = parse(self._text(MANIFEST), summed, self._members)

    def check(self) -> None:
        """Compare every file with its sum. BundleError with the first that differs."""
        for name in self.contents.sums:
            for _part in self._parts(name):
                pass

    def part(self, names: Collection[str], folder: Path) -> tuple[Path, str]:
        """(an archive with these files in the folder, its SHA-256). BundleError if one is damaged or there is no space."""
        size = sum(self._members[name].size for name in names)
        need_space(folder, size + SPARE)
        path = folder / "part.tar"
        with path.open("wb") as stream:
            for name in names:
                tar.add(stream, name, self._members[name].size, self._parts(name))
            tar.finish(stream)
        return path, sha256_of(path)

    def _parts(self, name: str) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with _damage():
            for part in tar.content(self._stream, self._members[name]):
                digest.update(part)
                yield part
        if digest.hexdigest() != self.contents.sums[name]:
            raise BundleError(f"{name} with SHA-256 {digest.hexdigest()}", f"{self.contents.sums[name]}, as in {SUMS}", _COPY)

    def _text(self, name: str) -> bytes:
        """A small file of the archive, before its sum is known."""
        member = self._members.get(name)
        if member is None:
            cure = "name the file that the playbook bundle has written in gpushare_bundle"
            raise BundleError(f"no {name} in the archive", "a bundle of gpushare.kubernetes", cure)
        if member.size > MOST_TEXT:
            raise BundleError(f"{name} of {member.size} bytes", f"at most {MOST_TEXT}", _COPY)
        with _damage():
            return b"".join(tar.content(self._stream, member))

    def _check_signature(self, summed: bytes, key: bytes) -> None:
        if SIGNATURE not in self._members:
            cure = "make it with gpushare_bundle_sign, or leave gpushare_bundle_key out"
            raise BundleError("no signature", f"{SIGNATURE}, because gpushare_bundle_key names a key", cure)
        try:
            keys = openpgp.read_keys(key)
        except openpgp.PublicKeyError as error:
            raise BundleError(f"gpushare_bundle_key: {error}", "public keys of OpenPGP", "correct gpushare_bundle_key") from error
        why = signed_by(keys, summed, self._text(SIGNATURE))
        if why:
            shown = " or ".join(signer.fingerprint for signer in keys[:4])
            raise BundleError(f"a signature that is not good ({why})", f"one of the key {shown}", "find out who has made this bundle")


@contextmanager
def opened(path: str, key: str = "") -> Iterator[Bundle]:
    """The bundle at a path of the controller. key: path of the public keys, "" for none. BundleError."""
    try:
        with Path(path).expanduser().open("rb") as stream:
            keys = b""
            if key:
                with Path(key).expanduser().open("rb") as of_keys:
                    keys = of_keys.read(openpgp.LIMIT + 1)
            yield Bundle(stream, keys)
    except OSError as error:
        seen = f"no {error.filename or path} that can be read ({error.strerror})"
        raise BundleError(seen, "a file on the controller", "correct gpushare_bundle or gpushare_bundle_key") from error


def signed_by(keys: Collection[openpgp.Key], text: bytes, signature: bytes) -> str:
    """Why the signature of the text is not a good one by one of these keys; "" if it is. Only gpgv is asked, with these keys alone."""
    program = shutil.which("gpgv")
    if program is None:
        return "there is no gpgv on this machine to check it: install gnupg"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("keys", b"".join(signer.packets for signer in keys)), ("text", text), ("signature", signature)):
            (Path(folder) / name).write_bytes(content)
        command = [program, "--homedir", folder, "--keyring", f"{folder}/keys", "--status-fd", "1", f"{folder}/signature", f"{folder}/text"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_GPGV_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"gpgv did not end within {_GPGV_SECONDS} s"
    said = done.stdout.decode("ascii", "replace")
    if done.returncode == 0 and "[GNUPG:] GOODSIG " in said and not any(f"[GNUPG:] {bad} " in said for bad in ("EXPKEYSIG", "REVKEYSIG")):
        return ""
    return " ".join(done.stderr.decode("utf-8", "replace").split())[-200:] or "gpgv says nothing"


def parts_of(source: Source) -> Iterator[bytes]:
    """The content of a file, or these bytes."""
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as stream:
        while part := stream.read(tar.CHUNK):
            yield part


def sha256_of(source: Source) -> str:
    """In hexadecimal."""
    digest = hashlib.sha256()
    for part in parts_of(source):
        digest.update(part)
    return digest.hexdigest()


def need_space(folder: Path, size: int) -> None:
    """BundleError where the file system of the folder has less than this many bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        more = -(-(size - free) >> 20)
        cure = f"free {more} MiB more there, or name another folder: gpushare_bundle_folder for a bundle, TMPDIR for parts of it"
        raise BundleError(f"{free >> 20} MiB free in {folder}", f"{-(-size >> 20)} MiB", cure)


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except tar.TarError as error:
        raise BundleError(str(error), "an archive as the playbook bundle writes it", _COPY) from error
