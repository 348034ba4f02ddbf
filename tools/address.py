# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where the project is published: `repository` of galaxy.yml, and what follows from it.

The owner of the repository writes that one line. `python tools/address.py --write` then writes the other addresses of galaxy.yml, those of
the chart, and the `runbook_url` of each alert; without the option it compares them. `make release` rejects the placeholder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

ROOT: Final = Path(__file__).resolve().parent.parent
GALAXY: Final = "galaxy.yml"
CHART: Final = "charts/gpushare/Chart.yaml"
RULES: Final = "docs/operate/monitoring/rules.yml"
RUNBOOKS: Final = "docs/operate/monitoring/README.md"
BRANCH: Final = "main"
#: What follows `repository` in galaxy.yml.
DERIVED: Final = {"documentation": f"/tree/{BRANCH}/docs", "homepage": "", "issues": "/issues"}
_REPOSITORY: Final = re.compile(r"^repository: (\S+)\n(?:(?:" + "|".join(DERIVED) + r"): .*\n)*", re.MULTILINE)
_RUNBOOK: Final = re.compile(r"(- alert: (\w+)\n(?:(?!- alert:|- name:).*\n)*?\s+runbook(?:_url)?: ?)\S*")


def repository(root: Path = ROOT) -> str:
    """The address, without a slash at its end."""
    found = _REPOSITORY.search((root / GALAXY).read_text())
    if not found:
        sys.exit(f"{GALAXY}: found no line `repository: ADDRESS`; expected one: write the address of the repository there")
    return found[1].rstrip("/")


def rejected(address: str) -> str:
    """Why a release cannot have this address; "" if it can."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    # RFC 2606 and RFC 6761: names that never lead anywhere.
    reserved = host.rpartition(".")[2] in ("", "example", "test", "invalid", "localhost") or re.search(
        r"(^|\.)example\.(com|net|org)$", host
    )
    if parts.scheme == "https" and not reserved and parts.path.strip("/"):
        return ""
    return (
        f"{GALAXY}: found repository {address[:80]!r}, which leads nowhere; expected the https address of the published repository; "
        f"write it into {GALAXY}, run `python tools/address.py --write`, and commit"
    )


def galaxy(text: str, address: str) -> str:
    """galaxy.yml with all addresses."""
    lines = "".join(f"{key}: {address}{path}\n" for key, path in DERIVED.items())
    return _REPOSITORY.sub(f"repository: {address}\n{lines}", text)


def rules(text: str, address: str) -> str:
    """The alerts with the address of their runbooks."""

    def link(found: re.Match[str]) -> str:
        before = found[1].replace("runbook:", "runbook_url:")
        return f"{before.rstrip()} {address}/blob/{BRANCH}/{RUNBOOKS}#{found[2].lower()}"

    return _RUNBOOK.sub(link, text)


def chart(text: str, address: str) -> str:
    """Chart.yaml with `home` and `sources`, which registries of charts show."""
    return re.sub(r"^(?:home|sources): .*\n", "", text, flags=re.MULTILINE) + f"home: {address}\nsources: [{address}]\n"


FILLED: Final = {GALAXY: galaxy, RULES: rules, CHART: chart}


def problems(root: Path = ROOT) -> Iterator[str]:
    """Files with another address than that of `repository`."""
    address = repository(root)
    for path, fill in FILLED.items():
        text = (root / path).read_text()
        if fill(text, address) != text:
            yield f"{path} has other addresses than those of repository {address} in {GALAXY}; run `python tools/address.py --write`"


def main(arguments: list[str]) -> None:
    address = repository()
    if "--write" in arguments:
        for path, fill in FILLED.items():
            (ROOT / path).write_text(fill((ROOT / path).read_text(), address))
    found = list(problems())
    if found:
        sys.exit("\n".join(found))
    note = "; a release needs another one" if rejected(address) else ""
    print(f"the addresses are those of {address}{note}")


if __name__ == "__main__":
    main(sys.argv[1:])
