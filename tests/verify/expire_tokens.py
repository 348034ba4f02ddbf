# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node: tokens in files as they would be had they run out an hour ago."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path

LIFE = 604800


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        if not path.exists():
            continue
        head, payload, signature = path.read_text().strip().split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        claims["exp"] = int(time.time()) - 3600
        claims["iat"] = claims["nbf"] = claims["exp"] - LIFE
        changed = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
        path.write_text(f"{head}.{changed}.{signature}\n")


main()
