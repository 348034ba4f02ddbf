# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the token that a daemon of this host has, and ask the API server whether it takes it. No Ansible here."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import replace
from typing import Callable, Optional
from urllib.parse import urlsplit

from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubeconfig import where
from ansible_collections.gpushare.kubernetes.plugins.module_utils._token import Token, read_token

# (URL of the API server, its certificate authority as PEM, token) to whether the token is taken; None: no answer.
Ask = Callable[[str, str, str], Optional[bool]]

SECONDS = 5.0


def own_token(token_path: str, kubeconfig_path: str, ask: Ask) -> Optional[Token]:
    """The claims of the token in the file, None if there is none, and what the API server of the kubeconfig says of it."""
    text, config = _text(token_path), _text(kubeconfig_path)
    found, server = read_token(text), where(config)
    if found is None or text is None or server is None:
        return found
    return replace(found, accepted=ask(server[0], server[1], text.strip()))


def ask_api_server(url: str, ca: str, token: str) -> Optional[bool]:
    """Whether the API server takes the token: it answers 401 to one that it does not know, whatever is asked for."""
    try:
        address = urlsplit(url)
        context = ssl.create_default_context(cadata=ca)
        connection = http.client.HTTPSConnection(address.hostname or "", address.port or 443, timeout=SECONDS, context=context)
        try:
            connection.request("GET", "/version", headers={"Authorization": "Bearer " + token})
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return None if status >= 500 else status != 401


def _text(path: str) -> Optional[str]:
    state = read_state(path)
    return None if state is None else state.content.decode("utf-8", "replace")
