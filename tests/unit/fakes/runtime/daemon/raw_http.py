# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One request over a plain socket, so that a test writes each line of it."""

from __future__ import annotations

import asyncio


async def get(port: int, *headers: str, line: str = "GET /metrics HTTP/1.1") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([line, "Host: x", *headers, "", ""]).encode())
    text = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return text
