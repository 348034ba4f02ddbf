# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The certificates of a host, and the options of the extender that name them."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpushare_runtime.extender.tls import TlsFiles
from gpushare_runtime.pki.folder import Folder

NOW = datetime.now(timezone.utc)


def make(directory: Path, now: datetime = NOW) -> TlsFiles:
    """The certificates of a host, made with gpushare-pki's own code."""
    folder = Folder(directory)
    with folder.locked():
        folder.write(folder.due(now))
    return TlsFiles(directory / "extender.crt", directory / "extender.key", directory / "ca.crt")


def options(files: TlsFiles) -> dict[str, Any]:
    return {"more": ["--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--client-ca", str(files.client_ca)]}
