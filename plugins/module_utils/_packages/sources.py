# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of apt's sources and of rpm's repository files: ours, and those of others without the repositories that ours takes over.

apt does not work at all where one repository is listed twice with two keys, so what names the same address must go before ours comes.
Its forms of an address and its rules for stanzas are those of apt 2.6.1, which was asked (`apt-get update --print-uris`, 2026-11-29); those
of repository files are libdnf's (IniParser.cpp).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Sequence, Tuple
from urllib.parse import unquote

from .model import Repository

HEADER = "# Made by gpushare.kubernetes; it would be written anew.\n"
PREFIX = "gpushare-"
TAKEN = "# taken over by gpushare.kubernetes: "
_ONE_LINE = re.compile(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?\"?([^\s\"]+)")
_FIELD = re.compile(r"([^\s:#][^:\n]*):")
_SECTION = re.compile(r"^[ \t]*\[([^\]\n]+)\][ \t]*(?:[#;][^\n]*)?(?:\r?\n|\Z)", re.MULTILINE)
_ADDRESS = re.compile(r"^[ \t]*(?:baseurl|mirrorlist|metalink)[ \t]*=(.*(?:\n[ \t]+[^\s\[=][^=\n]*$)*)", re.MULTILINE)
# As apt has them for "no"; anything else is not.
_NO = ("no", "false", "without", "off", "disable", "0")
_ARCHITECTURE = "$(ARCH)"


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
    parts = _plain(url).split("/")
    return any(_begins(parts, _plain(address).split("/")) for address in urls)


def _begins(parts: Sequence[str], address: Sequence[str]) -> bool:
    # apt fills in the architecture.
    return len(parts) >= len(address) and all(parts[place] in (other, _ARCHITECTURE) for place, other in enumerate(address))


def _plain(url: str) -> str:
    """One repository by two ways of fetching or of writing it is still one."""
    address = unquote(re.sub(r"^[A-Za-z+]+://(?:[^/@]*@)?", "", url))
    host, _slash, path = address.partition("/")
    host = re.sub(r":(?:80|443)$", "", host.lower())
    return f"{host}/{re.sub('/+', '/', path).strip('/')}".rstrip("/")


class _Field(NamedTuple):
    """A field of a stanza. lines: of its value, and comments between; the first has its name."""

    name: str
    lines: List[str]

    @property
    def words(self) -> List[str]:
        text = "".join(line for line in self.lines if not line.startswith("#"))
        return text.partition(":")[2].split()


def _stanza(text: str, urls: Sequence[str]) -> str:
    fields: List[_Field] = []
    for line in text.splitlines(keepends=True):
        found = None if line.startswith("#") else _FIELD.match(line)
        if found is not None or not fields:
            fields.append(_Field(found.group(1).rstrip().lower() if found else "", [line]))
        else:
            fields[-1].lines.append(line)
    # Of several fields of a name, apt takes the last one.
    last = {field.name: field for field in fields}
    addresses = last.get("uris")
    taken = [url for url in (addresses.words if addresses else ()) if same(url, urls)]
    enabled = (last["enabled"].words or [""])[0].lower() if "enabled" in last else ""
    if addresses is None or not taken or enabled in _NO:
        return text
    if len(taken) == len(addresses.words):
        kept = [field for field in fields if field.name != "enabled"]
        newline = "\r\n" if "\r\n" in addresses.lines[0] else "\n"
        return "".join((f"Enabled: no{newline}" if field is addresses else "") + "".join(field.lines) for field in kept)
    return "".join("".join(_without(field.lines, set(taken)) if field is addresses else field.lines) for field in fields)


def _without(lines: Sequence[str], gone: "set[str]") -> List[str]:
    """The lines of a field without these words. A line that has nothing left goes, because an empty one would end the stanza."""
    kept = []
    for place, line in enumerate(lines):
        if not line.startswith("#"):
            # From the beginning of white space only: from each of many blanks, the search would go on to their end.
            line = re.sub(r"(?<![ \t])[ \t]*(\S+)", lambda match: "" if match.group(1) in gone else match.group(), line)
        if place == 0 or line.strip():
            kept.append(line)
    return kept


def _section(text: str, urls: Sequence[str]) -> str:
    addresses = [url for value in _ADDRESS.findall(text) for url in re.split(r"[\s,]+", value) if url]
    if not any(same(url, urls) for url in addresses):
        return text
    enabled = re.compile(r"^([ \t]*enabled[ \t]*=[ \t]*)\S*", re.MULTILINE)
    if enabled.search(text):
        return enabled.sub(r"\g<1>0", text)
    head, newline, rest = text.partition("\n")
    return f"{head}\nenabled=0\n{rest}" if newline else f"{head}\nenabled=0\n"
