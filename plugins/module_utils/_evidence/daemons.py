# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows of our daemons: units, processes, the runtime's files, tokens, certificates. Read-only.

Private to this collection. Returns plain JSON: what it means is judged on the controller (_verdict/daemons.py), with what the other
hosts and the API say. What cannot be read is said in words under "problem", never raised.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
import shlex
import time
from http.client import HTTPConnection, HTTPException
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.environment import LINK, MARKER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import VARIABLE
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host, flag
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS, parsed, show_command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.token import read_token

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "StatusText")
_GENERATION = re.compile(rf"^Environment={VARIABLE}=(\S+)$", re.MULTILINE)
_ASK_SECONDS = 20.0
_METRICS_SECONDS = 5.0
#: Of a damaged installation so many files are named.
_NAMED = 5


def unit(host: Host, name: str) -> Dict[str, Any]:
    """A systemd service: its state, and the generations (_daemon/service.py) of its file and of its process; None for none."""
    file = f"{name}.service"
    outcome = host.ask(host.program("systemctl"), show_command(file, *_PROPERTIES)[1:], _ASK_SECONDS)
    properties = parsed(outcome.out if outcome else "")
    content = host.text(f"{UNITS}/{file}")
    wanted = _GENERATION.search(content or "")
    pid = int(properties.get("MainPID") or 0)
    return {
        "name": name,
        "exists": content is not None,
        "active": properties.get("ActiveState", "unknown"),
        "state": properties.get("SubState", ""),
        "enabled": properties.get("UnitFileState", "") == "enabled",
        "says": properties.get("StatusText", ""),
        "pid": pid,
        "with_token": "--token-file" in (content or ""),
        "arguments": _arguments(content or "") if pid else [],
        "file_generation": (wanted.group(1) if wanted else "") if content is not None else None,
        "process_generation": _process_generation(host, pid),
    }


def runtime(host: Host, install_dir: str) -> Dict[str, Any]:
    """The runtime that is in use: hashes of what it was installed from, and which of its files are not as they were installed."""
    name = host.link(posixpath.join(install_dir, LINK))
    folder = posixpath.join(install_dir, name or "")
    try:
        marker: Dict[str, Any] = json.loads((host.text(posixpath.join(folder, MARKER)) if name else None) or "{}")
    except ValueError:
        marker = {}
    damaged, count = _damaged(host, folder) if name else ([], 0)
    hashes = {key: str(marker.get(key, "")) for key in ("version", "wheel_sha256", "requirements_sha256")}
    return dict(hashes, environment=folder if name else "", files=count, damaged=damaged[:_NAMED], damaged_count=len(damaged))


def token(host: Host, path: str) -> Dict[str, Any]:
    """A token file: whether it is there, and the claims of its token, unverified; None where it holds none."""
    found = read_token(host.text(path))
    return {"path": path, "exists": host.exists(path), "claims": None if found is None else found.as_dict()}


def certificates(host: Host, install_dir: str, pki_dir: str) -> Dict[str, Any]:
    """What `gpushare-pki status` says; problem: why it says nothing."""
    program = posixpath.join(install_dir, LINK, "bin", "gpushare-pki")
    outcome = host.ask(host.program(program), ["status", "--dir", pki_dir], _ASK_SECONDS)
    if outcome is None:
        return {"problem": f"there is no {program}", "certificates": []}
    try:
        return {"problem": "", "certificates": json.loads(outcome.out)["certificates"]}
    except (ValueError, LookupError, TypeError):
        return {"problem": f"{program} status --dir {pki_dir} ended with {outcome.status}: {outcome.words}", "certificates": []}


def metrics(host: Host, wanted: str, arguments: Sequence[str]) -> Optional[Dict[str, Any]]:
    """What a daemon with these arguments answers to who asks for its metrics; None where it serves none and is to serve none.

    wanted: the address where it is to serve them; wants_token: whether it was told to ask for one; stranger, scraper: its answers to
    who shows none, and to who shows the one in its file; an HTTP status, or why there is none.
    """
    listens, file = flag(arguments, "metrics-listen") or "", flag(arguments, "metrics-token-file") or ""
    if not wanted and not listens:
        return None
    token_ = (host.text(file) or "").strip() if file else ""
    stranger = _status(listens, "") if listens else "it was started without --metrics-listen"
    return {
        "wanted": wanted,
        "listens": listens,
        "wants_token": bool(file),
        "stranger": stranger,
        "scraper": _status(listens, token_) if listens and token_ else stranger,
    }


def _status(address: str, token_: str) -> Union[int, str]:
    name, _colon, port = address.rpartition(":")
    # Whoever listens everywhere listens on this host.
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name.strip("[]"), name.strip("[]"))
    connection = HTTPConnection(name, int(port), timeout=_METRICS_SECONDS)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token_}"} if token_ else {})
        return connection.getresponse().status
    except (OSError, HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()


def now() -> float:
    """Unix time of this host, against which its tokens and containers are judged."""
    return time.time()


def _arguments(unit_file: str) -> List[str]:
    """With what it was started. Not by the process, which may write there what it likes: files that are named here are read as root."""
    start = re.search(r"^ExecStart=(.*)$", unit_file.replace("\\\n", " "), re.MULTILINE)
    try:
        return shlex.split(start.group(1)) if start else []
    except ValueError:
        return []


def _process_generation(host: Host, pid: int) -> Optional[str]:
    data = host.data(f"/proc/{pid}/environ") if pid else None
    if data is None:
        return None
    values = [word.partition(b"=")[2] for word in data.split(b"\0") if word.startswith(VARIABLE.encode() + b"=")]
    return values[0].decode("ascii", "replace") if values else ""


def _damaged(host: Host, environment: str) -> Tuple[List[str], int]:
    """(our files that differ from pip's record of them or are gone, how many there are)."""
    damaged, count = [], 0
    for packages in _packages(host, environment):
        for info in host.names(packages):
            if not (info.startswith("gpushare_runtime-") and info.endswith(".dist-info")):
                continue
            for path, wanted in _record(host.text(f"{packages}/{info}/RECORD") or ""):
                count += 1
                content = host.data(posixpath.normpath(posixpath.join(packages, path)))
                found = base64.urlsafe_b64encode(hashlib.sha256(content or b"").digest()).rstrip(b"=").decode()
                if content is None or found != wanted:
                    damaged.append(path)
    return damaged, count


def _packages(host: Host, environment: str) -> Sequence[str]:
    return [f"{environment}/lib/{name}/site-packages" for name in host.names(f"{environment}/lib") if name.startswith("python3")]


def _record(text: str) -> List[Tuple[str, str]]:
    """(path, hash) of each file of our package that the record has a hash of."""
    rows = [line.rsplit(",", 2) for line in text.splitlines()]
    return [(row[0], row[1][len("sha256=") :]) for row in rows if len(row) == 3 and row[1].startswith("sha256=") and ".py" in row[0]]
