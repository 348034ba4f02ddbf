# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of apt's sources and of rpm's repository files: ours, and those of others without the repositories that ours takes over.

apt does not work at all where one repository is listed twice with two keys, so what names the same address must go before ours comes.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Set, Tuple

from .model import Repository

HEADER = "# Made by gpushare.kubernetes; it would be written anew.\n"
PREFIX = "gpushare-"
TAKEN = "# taken over by gpushare.kubernetes: "
_ONE_LINE = re.compile(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?(\S+)")
_SECTION = re.compile(r"^\[([^\]]+)\][ \t]*(?:\r?\n|\Z)", re.MULTILINE)


def deb822(repository: Repository, key_path: str, architecture: str) -> str:
    """Ours, in apt's newer form."""
    fields = [("Types", "deb"), ("URIs", repository.url), ("Suites", repository.suite)]
    if repository.components:
        fields.append(("Components", " ".join(repository.components)))
    fields += [("Architectures", architecture), ("Signed-By", key_path)]
    return HEADER + "".join(f"{name}: {value}\n" for name, value in fields)


def preferences(version: str) -> str:
    """For apt: whatever package has this upstream version is taken in it, also where that is a downgrade."""
    return f"{HEADER}Package: /./\nPin: version {version}-*\nPin-Priority: 1001\n"


def repo_file(repository: Repository, key_path: str, more: Sequence[Tuple[str, str]] = ()) -> str:
    """Ours, for dnf and zypper. more: fields that only one of them knows."""
    fields = [
        ("name", f"{repository.name} (gpushare.kubernetes)"),
        ("baseurl", repository.url),
        ("enabled", "1"),
        ("repo_gpgcheck", "1"),
        ("gpgcheck", "1" if repository.package_signatures else "0"),
        ("gpgkey", "file://" + key_path),
        ("sslverify", "1"),
        *more,
    ]
    return f"{HEADER}[{PREFIX}{repository.name}]\n" + "".join(f"{name}={value}\n" for name, value in fields)


def without_lines(text: str, urls: Sequence[str]) -> str:
    """A list of apt's older form, where the entries of these addresses are comments."""
    kept = []
    for line in text.splitlines(keepends=True):
        found = _ONE_LINE.match(line)
        kept.append(TAKEN + line.lstrip() if found and same(found.group(1), urls) else line)
    return "".join(kept)


def without_stanzas(text: str, urls: Sequence[str]) -> str:
    """A list of apt's newer form, without the addresses: a stanza that names only such is switched off."""
    parts = re.split(r"((?:^[ \t]*\r?\n)+)", text, flags=re.MULTILINE)
    return "".join(_stanza(part, urls) for part in parts)


def without_sections(text: str, urls: Sequence[str]) -> str:
    """A repository file of rpm, where the sections of these addresses are switched off."""
    places = [match.start() for match in _SECTION.finditer(text)]
    parts = [text[: places[0]]] if places else [text]
    ends = [*places[1:], len(text)]
    parts += [text[start : ends[index]] for index, start in enumerate(places)]
    return "".join(_section(part, urls) for part in parts)


def names_only(text: str) -> bool:
    """Whether a source list says nothing any more but comments."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())


def same(url: str, urls: Sequence[str]) -> bool:
    """Whether this is one of the addresses, or below one."""
    plain = _plain(url)
    return any(plain == address or plain.startswith(address + "/") for address in map(_plain, urls))


def _plain(url: str) -> str:
    # One repository by two ways of fetching it is still one, and so are two spellings of its address.
    host, slash, path = re.sub(r"^[A-Za-z+]+://(?:[^/@]*@)?", "", url).partition("/")
    return re.sub(r":(?:80|443)\Z", "", host.lower()) + slash + re.sub("//+", "/", path).strip("/") if path.strip("/") else host.lower()


def _stanza(text: str, urls: Sequence[str]) -> str:
    found = _values(text, "URIs")
    taken = [url for url in found or () if same(url, urls)]
    if not found or not taken or (_values(text, "Enabled") or [""])[0].lower() in ("no", "false"):
        return text
    if len(taken) == len(found):
        bare = re.sub(r"^Enabled[ \t]*:.*\r?\n", "", text, flags=re.M | re.I)
        return re.sub(r"^(?=URIs[ \t]*:)", "Enabled: no\n", bare, count=1, flags=re.M | re.I)
    gone = set(taken)
    return "".join(_line(line, gone) for line in text.splitlines(keepends=True))


def _line(line: str, gone: Set[str]) -> str:
    """A line without these words; "" where no other is in it, because an empty line would end the stanza."""
    # From the beginning of white space only: from each of many blanks, the search would go on to their end.
    kept = re.sub(r"(?<![ \t])[ \t]*(\S+)", lambda match: "" if match.group(1) in gone else match.group(), line)
    return line if line.startswith("#") else kept if kept.strip() or not line.strip() else ""


def _values(text: str, field: str) -> Optional[List[str]]:
    # Lines with comments may stand in the middle of a field.
    found = re.search(rf"^{field}[ \t]*:(.*(?:\r?\n[ \t#].*)*)", text, re.MULTILINE | re.IGNORECASE)
    return None if found is None else [word for line in found.group(1).splitlines() if not line.startswith("#") for word in line.split()]


def _section(text: str, urls: Sequence[str]) -> str:
    # A list of addresses continues in indented lines: all are mirrors of one repository.
    addresses = re.findall(r"^[ \t]*(?:baseurl|mirrorlist|metalink)[ \t]*=(.*(?:\r?\n[ \t]+\S.*)*)", text, re.MULTILINE)
    if not any(same(url, urls) for value in addresses for url in re.split(r"[\s,]+", value)):
        return text
    enabled = re.compile(r"^([ \t]*enabled[ \t]*=[ \t]*)\S*", re.MULTILINE)
    if enabled.search(text):
        return enabled.sub(r"\g<1>0", text)
    head, newline, rest = text.partition("\n")
    return f"{head}\nenabled=0\n{rest}" if newline else f"{head}\nenabled=0\n"
