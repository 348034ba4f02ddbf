# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Official release binaries, each judged by the checksum that is published beside it. Where they cannot be had, the caller builds."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from .cache import Cache
from .process import LabError, in_parallel, say, under_way

VARIABLE = "GPUSHARE_LAB_RELEASES"
KUBERNETES = "dl.k8s.io/release"
ETCD = "github.com/etcd-io/etcd/releases/download"

# Whether there is a way to a host is decided in this time, and so is that a server says nothing more.
SILENCE_S = 5.0
# A server that speaks, but slowly, is no better than a build.
_DOWNLOAD_S = 900.0
_CHUNK = 1 << 20


class Unavailable(Exception):
    """Why a file cannot be had: no network, no such file, or an answer that breaks off."""


def base(env: Mapping[str, str]) -> str | None:
    """What stands before a host's name in an address; None where releases are not wanted."""
    named = env.get(VARIABLE, "")
    if named == "off":
        return None
    if named and not re.match(r"https?://[^/]", named):
        raise LabError(f'{VARIABLE}={named}: expected an address such as https://mirror.example/releases, or "off"')
    return f"{named.rstrip('/')}/" if named else "https://"


def kubernetes(cache: Cache, version: str, programs: Sequence[str]) -> Path | None:
    """A folder with these programs of a Kubernetes release; None if they cannot be had."""

    def download(folder: Path, before: str) -> None:
        where = f"{before}{KUBERNETES}/v{version}/bin/linux/amd64"
        # The first checksum decides whether there is a way to the host at all.
        sums = {programs[0]: _checksum(f"{where}/{programs[0]}.sha256")}
        in_parallel(lambda name: sums.setdefault(name, _checksum(f"{where}/{name}.sha256")), programs[1:])
        failures: list[Exception] = []

        def fetch(name: str) -> None:
            try:
                _download(f"{where}/{name}", folder / name, sums[name])
                (folder / name).chmod(0o755)
            except (LabError, Unavailable) as error:
                failures.append(error)

        in_parallel(fetch, programs)
        # A wrong checksum is told, whatever else has failed.
        for failure in sorted(failures, key=lambda error: isinstance(error, Unavailable)):
            raise failure

    return _entry(cache, "kubernetes", version, {"programs": " ".join(programs)}, download)


def etcd(cache: Cache, version: str) -> Path | None:
    """A folder with etcd of a release; None if it cannot be had."""
    name = f"etcd-v{version}-linux-amd64"

    def download(folder: Path, before: str) -> None:
        where, archive = f"{before}{ETCD}/v{version}", folder / "archive"
        _download(f"{where}/{name}.tar.gz", archive, _checksum(f"{where}/SHA256SUMS", f"{name}.tar.gz"))
        with tarfile.open(archive) as content:
            program = content.extractfile(f"{name}/etcd") if f"{name}/etcd" in content.getnames() else None
            if program is None:
                raise Unavailable(f"{where}/{name}.tar.gz has no program etcd in it")
            (folder / "etcd").write_bytes(program.read())
        (folder / "etcd").chmod(0o755)
        archive.unlink()

    return _entry(cache, "etcd", version, {}, download)


def _entry(cache: Cache, what: str, version: str, recipe: Mapping[str, str], download: Callable[[Path, str], None]) -> Path | None:
    """The cache entry, downloaded if it is missing; None, with the reason said, if that fails."""
    name = f"{what}-released"
    if found := cache.present(name, version, recipe):
        return found
    before = base(os.environ)
    if before is None:
        return None
    try:
        return cache.entry(name, version, recipe, lambda folder: download(folder, before))
    except Unavailable as error:
        say(f"{what} {version}: no release binaries ({error}): it is built from Go modules")
        return None


def _checksum(address: str, of: str = "") -> str:
    """A published checksum: the file's only word, or the word before a name where it lists several."""
    text: list[str] = []
    failure: list[Unavailable] = []

    def ask() -> None:
        try:
            with _opened(address) as answer:
                text.append(answer.read(_CHUNK).decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            failure.append(Unavailable(f"{address}: {error}"))
        except Unavailable as error:
            failure.append(error)

    # A thread, since looking up a name has no time limit of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SILENCE_S)
    if failure:
        raise failure[0]
    if not text:
        raise Unavailable(f"{address}: no answer within {SILENCE_S:g} s")
    pattern = rf"^([0-9a-f]{{64}}) [ *]{re.escape(of)}$" if of else r"\A([0-9a-f]{64})\s*\Z"
    # Anything else, such as a proxy's page, does not come from there.
    if not (found := re.search(pattern, text[0], re.MULTILINE)):
        raise Unavailable(f"{address} has no checksum{f' of {of}' if of else ''}")
    return found[1]


def _download(address: str, target: Path, checksum: str) -> None:
    """Fetch a file. One that is not what its checksum says is an error and does not stay."""
    digest, size, end = hashlib.sha256(), 0, time.monotonic() + _DOWNLOAD_S
    try:
        with under_way(f"downloading {address}"), _opened(address) as answer, target.open("wb") as file:
            while data := answer.read(_CHUNK):
                file.write(data)
                digest.update(data)
                size += len(data)
                if time.monotonic() > end:
                    raise Unavailable(f"{address}: {size} bytes in {_DOWNLOAD_S:g} s")
            announced = answer.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{address}: {error}") from error
    if announced is not None and size < int(announced):
        raise Unavailable(f"{address} broke off after {size} of {announced} bytes")
    if digest.hexdigest() != checksum:
        target.unlink()
        raise LabError(
            f"{address} has the SHA-256 checksum {digest.hexdigest()}, published is {checksum}: it is not used. "
            f"Call the lab with {VARIABLE}=off to build from Go modules"
        )


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise Unavailable(f"{req.full_url} leads to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opened(address: str) -> http.client.HTTPResponse:
    opener = urllib.request.build_opener(_NoDowngrade())
    opened: http.client.HTTPResponse = opener.open(address, timeout=SILENCE_S)
    return opened
