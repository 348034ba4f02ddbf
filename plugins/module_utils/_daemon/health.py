# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health reports that our daemons give on this host as JSON."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, Dict, Mapping, Optional, Tuple

# Of one answer; any process of the host may have the port.
_MOST_BYTES = 1024 * 1024
_TIMEOUT = 5.0


def fetch_json(url: str, ca: Optional[str] = None) -> Tuple[Optional[Dict[str, Any]], str]:
    """(the JSON object at a URL of this host whatever its HTTP status, "") or (None, why not). Never through a proxy.

    ca: for https, the file of the certificate authority that must have signed the server's certificate; None: the host's own ones.
    """
    try:
        # Plain http with a `ca` as well: a file that cannot be read must not pass unnoticed.
        handlers = [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))] if ca else []
    except (OSError, ssl.SSLError) as error:
        return None, f"{url} cannot be read: {ca} must be a certificate authority in PEM: {error}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    try:
        with opener.open(url, timeout=_TIMEOUT) as reply:
            body = reply.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        body = error.read(_MOST_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return None, f"{url} cannot be read: {error}"
    try:
        found = json.loads(body)
    except ValueError:
        return None, f"{url} must answer JSON; it answers {body[:80]!r}"
    if not isinstance(found, dict):
        return None, f"{url} must answer a JSON object; it answers {body[:80]!r}"
    return found, ""


def unhealthy(health: Optional[Mapping[str, Any]], why: str, key: str) -> Optional[str]:
    """Why a daemon is not healthy yet, None if it is: its report must have `key` true. Takes what `fetch_json` returned."""
    if health is None:
        return why
    if health.get(key) is not True:
        return f"its health report must say {key}: true; it says {json.dumps(dict(health))}"
    return None
