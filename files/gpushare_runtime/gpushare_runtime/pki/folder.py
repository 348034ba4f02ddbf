# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The folder of a host's certificates: what is due, write just that, and what is wrong."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypedDict

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from gpushare_runtime.daemon.files import replace_files
from gpushare_runtime.pki import certificates
from gpushare_runtime.pki.certificates import Broken, Pair, Role, Server, belongs, fault, issue, left, read_certificate, read_key, stamp

RENEW_BELOW: Final = 1 / 3
"""The part of its life that a certificate has left when it is renewed."""
LATE_BELOW: Final = 1 / 6
"""With less left, nothing renews it."""

CA_COPY: Final = "scheduler/ca.crt"
_FOLDER_MODE, _KEY_MODE, _CERTIFICATE_MODE = 0o700, 0o600, 0o644


@dataclass(frozen=True)
class Files:
    """Where a certificate and its key are, under the folder."""

    role: Role
    certificate: str
    key: str


CA: Final = Files("ca", "ca.crt", "ca.key")
SERVER: Final = Files("server", "extender.crt", "extender.key")
CLIENT: Final = Files("client", "scheduler/tls.crt", "scheduler/tls.key")
DASHBOARD: Final = Files("server", "dashboard.crt", "dashboard.key")


@dataclass(frozen=True)
class Purpose:
    """The purpose of a folder of certificates. leaves: what its CA signs, the server's first; copy: of the CA's certificate, for others.

    timer: the systemd unit that renews them.
    """

    server: Server
    leaves: tuple[Files, ...]
    timer: str
    copy: str = ""

    @property
    def folders(self) -> dict[str, int]:
        """Modes by name."""
        return dict.fromkeys(("", *(os.path.dirname(files.certificate) for files in self.leaves)), _FOLDER_MODE)

    @property
    def modes(self) -> dict[str, int]:
        """Of the files, by name."""
        every = (CA, *self.leaves)
        public = [files.certificate for files in every] + [self.copy] * bool(self.copy)
        return {**dict.fromkeys((files.key for files in every), _KEY_MODE), **dict.fromkeys(public, _CERTIFICATE_MODE)}


EXTENDER: Final = Purpose(certificates.EXTENDER, (SERVER, CLIENT), "gpushare-pki.timer", CA_COPY)


def dashboard(names: Iterable[str]) -> Purpose:
    """The certificate of the dashboard, which people call by these names and addresses."""
    return Purpose(certificates.dashboard(names), (DASHBOARD,), "gpushare-dashboard-pki.timer")


class CertificateState(TypedDict):
    """One certificate, as `status` says it. not_after: "" when there is none; problem: "" or words."""

    path: str
    role: Role
    not_after: str
    days_left: float
    problem: str


@dataclass
class Due:
    """The work that has to be done: contents by file name, in the order to write; modes by name of what is too open."""

    contents: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return sorted({*self.contents, *(name or "." for name in self.modes)})

    def add(self, files: Files, pair: Pair, *, key: bool = True) -> None:
        # The key first: after a crash in between the pair does not match, which the next run sees and heals.
        if key:
            self.contents[files.key] = pair.key_pem
        self.contents[files.certificate] = pair.certificate_pem


class Unreadable(OSError, Broken):
    """A file that is there and cannot be read: what it holds may be good, so it is not replaced."""

    def __str__(self) -> str:
        return f"cannot be read: {self.strerror}"


class Folder:
    """The certificates under one path. Times are UTC and given; OSError for what the disk rejects."""

    def __init__(self, path: Path, purpose: Purpose = EXTENDER) -> None:
        self.path = path
        self.purpose = purpose

    def due(self, now: datetime) -> Due:
        """The changes that `ensure` would make; changes nothing."""
        due = Due(modes={**self._foreign_modes(), **self._open_modes()})
        ca = self._ca(due, now)
        pem, copy = due.contents.get(CA.certificate) or self._read(CA.certificate), self.purpose.copy
        if copy and self._bytes(copy) != pem:
            due.contents[copy] = pem
        for files in self.purpose.leaves:
            if self._renewal(files, ca.certificate, now):
                due.add(files, issue(files.role, ca, now, server=self.purpose.server))
        return due

    def write(self, due: Due) -> None:
        """Do it, each file atomically."""
        for name, mode in due.modes.items():
            os.chmod(self.path / name, mode)
            with suppress(PermissionError):  # in a container whose root is another user outside
                os.chown(self.path / name, os.geteuid(), -1)
        for name, mode in self.purpose.folders.items():
            (self.path / name).mkdir(mode=mode, parents=True, exist_ok=True)
        paths = {self.path / name: data for name, data in due.contents.items()}
        replace_files(paths, {path: self.purpose.modes[name] for path, name in zip(paths, due.contents, strict=True)})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time: the timer and an administrator's play may come together."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def status(self, now: datetime) -> list[CertificateState]:
        """Every certificate, with what is wrong with it."""
        open_modes = self._open_modes()
        states = [self._state(files, now, open_modes) for files in (CA, *self.purpose.leaves)]
        name = self.purpose.copy
        if not name:
            return states
        copy = CertificateState(**{**states[0], "path": name, "problem": self._too_open([name], open_modes)})
        try:
            if self._read(name) != self._bytes(CA.certificate):
                copy["problem"] = f"{name} is not the same as {CA.certificate}"
        except Broken as broken:
            copy = CertificateState(path=name, role="ca", not_after="", days_left=0.0, problem=f"{name} {broken}")
        return [*states, copy]

    def _state(self, files: Files, now: datetime, open_modes: dict[str, int]) -> CertificateState:
        state = CertificateState(path=files.certificate, role=files.role, not_after="", days_left=0.0, problem="")
        try:
            certificate = self._certificate(files)
        except Broken as broken:
            state["problem"] = f"{files.certificate} {broken}"
            return state
        state["not_after"] = stamp(certificate.not_valid_after_utc)
        state["days_left"] = round((certificate.not_valid_after_utc - now).total_seconds() / 86400, 3)
        state["problem"] = self._problem(files, certificate, now, open_modes)
        return state

    def _problem(self, files: Files, certificate: x509.Certificate, now: datetime, open_modes: dict[str, int]) -> str:
        try:
            ca = self._certificate(CA)
        except Broken as broken:
            return f"{CA.certificate}, which should have signed it, {broken}"
        problem = fault(files.role, certificate, ca, now, self.purpose.server)
        if problem:
            return f"{files.certificate} {problem}"
        try:
            if not belongs(certificate, self._key(files)):
                return f"{files.key} is not the key of {files.certificate}"
        except Broken as broken:
            return f"{files.key} {broken}"
        if left(certificate, now) < LATE_BELOW:
            end = stamp(certificate.not_valid_after_utc)
            return f"{files.certificate} ends at {end} and should have been renewed by now: {self.purpose.timer} does not run, or fails"
        return self._too_open((*(name for name in self.purpose.folders if files is CA), files.key, files.certificate), open_modes)

    def _too_open(self, names: Iterable[str], open_modes: dict[str, int]) -> str:
        return next(
            (f"{name or self.path} is open to others; expected mode {open_modes[name]:04o}" for name in names if name in open_modes), ""
        )

    def _ca(self, due: Due, now: datetime) -> Pair:
        """The CA, made or renewed if needed. While its key is there it is kept, so that what it has signed stays valid."""
        try:
            key = self._key(CA)
        except Unreadable:
            raise
        except Broken:
            ca = issue("ca", None, now, server=self.purpose.server)
            due.add(CA, ca)
            return ca
        if self._renewal(CA, None, now):
            ca = issue("ca", None, now, key, self.purpose.server)
            due.add(CA, ca, key=False)
            return ca
        return Pair(self._certificate(CA), key)

    def _renewal(self, files: Files, ca: x509.Certificate | None, now: datetime) -> bool:
        """Whether a certificate is due to be made (again)."""
        try:
            certificate, key = self._certificate(files), self._key(files)
        except Unreadable:
            raise
        except Broken:
            return True
        bad = fault(files.role, certificate, ca or certificate, now, self.purpose.server)
        return bool(bad) or not belongs(certificate, key) or left(certificate, now) < RENEW_BELOW

    def _certificate(self, files: Files) -> x509.Certificate:
        return read_certificate(self._read(files.certificate))

    def _key(self, files: Files) -> EllipticCurvePrivateKey:
        return read_key(self._read(files.key))

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            raise Broken("is missing") from None
        except OSError as error:
            raise Unreadable(error.errno, error.strerror, str(self.path / name)) from None

    def _bytes(self, name: str) -> bytes | None:
        try:
            return self._read(name)
        except Broken:
            return None

    def _foreign_modes(self) -> dict[str, int]:
        """Of what belongs to another user than root, as after the restore of a backup."""
        modes = {**self.purpose.folders, **self.purpose.modes}
        return {name: mode for name, mode in modes.items() if os.geteuid() == 0 and self._user(name) not in (None, 0)}

    def _user(self, name: str) -> int | None:
        try:
            return os.stat(self.path / name).st_uid
        except OSError:
            return None

    def _open_modes(self) -> dict[str, int]:
        """Of what is there and gives others more than it should: its name → the mode that it should have."""
        found = {}
        for name, mode in {**self.purpose.folders, **self.purpose.modes}.items():
            try:
                if os.stat(self.path / name).st_mode & 0o777 & ~mode & 0o077:
                    found[name] = mode
            except OSError:
                continue
        return found
