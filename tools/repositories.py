#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Records which packages of roles/nvidia_driver/vars the repositories have: `python tools/repositories.py DISTRIBUTION SOURCE`.

A unit test compares the data of the role with the records. apt reads apt's repositories, dnf those of rpm packages, into a folder of
their own, and this machine stays as it is. A record keeps the packages that the data could mean, with their versions. Where a repository
is not reachable, a record may be gathered from public files that name its packages. It is then not complete, and says what it lacks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".collections"))

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._driver.data import read  # noqa: E402

VARS: Final = ROOT / "roles/nvidia_driver/vars"
RECORDS: Final = ROOT / "tests/unit/plugins/driver/repositories"
_COMPONENTS: Final = {"debian": "main contrib non-free", "ubuntu": "main restricted universe multiverse"}
_SUITES: Final = {
    "debian_12": ("bookworm",),
    "debian_13": ("trixie",),
    "ubuntu_22.04": ("jammy", "jammy-updates"),
    "ubuntu_24.04": ("noble", "noble-updates"),
    "ubuntu_26.04": ("resolute", "resolute-updates"),
}
_OF_APT: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_SECONDS: Final = 900
# The newest of a package: an archive has all that it had.
_VERSIONS: Final = 3
# Parts of names that are of the driver, and any other: of the kernel.
_BRANCH: Final = {"branch": r"(?P<branch>\d{3})", "suffix": r"(?:-(?P<branch>\d{3}))?", "fabric_suffix": r"(?:-(?P<branch>\d{3}))?"}
#: Name → versions.
Packages = dict[str, list[str]]


def groups(data: dict[str, Any], source: str) -> dict[str, list[Any]]:
    """The lists of names that a source's data has, by what they are for. headers: of the kernel, from the distribution alone."""
    of = data["sources"][source]
    found = {key: list(of.get(key) or []) for key in ("driver", "beside", "fabric", "nvlink5")}
    found |= {f"{key} {module}": names for key in ("dkms", "precompiled") for module, names in (of.get(key) or {}).items()}
    following = data["headers"]["following"].items()
    headers = [{"name": name, "machines": [machine]} for machine, names in following for name in names]
    return {**found, "headers": [data["headers"]["package"], *headers]} if source == "distribution" else found


def named(data: dict[str, Any], source: str) -> list[str]:
    """The names, with their parts in braces, of all that the data may install for a source."""
    return list(dict.fromkeys(one["name"] if isinstance(one, dict) else one for group in groups(data, source).values() for one in group))


def pattern(name: str) -> re.Pattern[str]:
    """Every package that a name of the data may mean. Its group `branch` is the driver's, None for a name without one."""
    words = re.split(r"\{([a-z_]+)\}", name)
    shapes = (re.escape(word) if at % 2 == 0 else _BRANCH.get(word, "[0-9][a-z0-9.+~_-]*") for at, word in enumerate(words))
    return re.compile("".join(shapes))


def record(distribution: str, source: str, archive: str) -> dict[str, Any]:
    """The packages of a source now, by machine. Of a name with a kernel in it, one shows that it is right. archive: of the distribution."""
    data = read(VARS / f"{distribution}.yml")
    found: dict[str, Packages] = {}
    for machine in data["sources"][source]["machines"]:
        apt = distribution.startswith(("debian", "ubuntu"))
        there = _apt(_lines(distribution, source, data, machine, archive), machine) if apt else _dnf(data["sources"][source], machine)
        kept: dict[tuple[str, str], str] = {}
        for one in sorted(there):
            for name in named(data, source):
                if match := pattern(name).fullmatch(one):
                    kept[name, match.groupdict().get("branch") or ""] = one
        if not kept:
            raise SystemExit(f"{distribution} {source} {machine}: the repositories have none of the names; is the address right?")
        found[machine] = {one: there[one][:_VERSIONS] for one in sorted(set(kept.values()))}
    return {"read": datetime.date.today().isoformat(), "complete": True, "from": ["the repositories"], "lacks": [], "packages": found}


def _lines(distribution: str, source: str, data: dict[str, Any], machine: str, archive: str) -> list[str]:
    if source != "distribution":
        return [f"{_address(data['sources'][source], machine)}/ /"]
    return [f"{archive} {suite} {_COMPONENTS[distribution.partition('_')[0]]}" for suite in _SUITES[distribution]]


def _apt(lines: list[str], machine: str) -> Packages:
    architecture = _OF_APT[machine]
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "sources.list")
        # Nothing is installed from it, and this machine has not each distribution's keys.
        sources.write_text("".join(f"deb [trusted=yes arch={architecture}] {line}\n" for line in lines))
        Path(folder, "state/lists/partial").mkdir(parents=True)
        values = {
            "Dir::State": f"{folder}/state",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": f"{folder}/cache",
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "Acquire::Languages": "none",
            "APT::Update::Error-Mode": "any",
        }
        options = [f"-o{key}={value}" for key, value in values.items()]
        _run(["apt-get", "-qq", *options, "update"])
        found: Packages = {}
        for name, version in re.findall(r"^Package: (.+)\n(?:.+\n)*?Version: (.+)$", _run(["apt-cache", *options, "dumpavail"]), re.M):
            found.setdefault(name, []).append(version)
        return found


def _dnf(of: dict[str, Any], machine: str) -> Packages:
    repository = f"--repofrompath=recorded,{_address(of, machine)}"
    arguments = ["--repo=recorded", f"--forcearch={machine}", "--nogpgcheck", "repoquery", "--qf=%{name} %{version}-%{release}\n"]
    found: Packages = {}
    for name, version in (line.split() for line in _run(["dnf", "-q", repository, *arguments]).splitlines()):
        found.setdefault(name, []).insert(0, version)
    return found


def _address(of: dict[str, Any], machine: str) -> str:
    repository = of["repository"]
    return str(repository["url"]).format(machine=repository.get("machines", {}).get(machine, machine))


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def main(argv: list[str] | None = None) -> int:
    """Write the record of one source of one distribution."""
    parser = argparse.ArgumentParser(description="Record the driver packages that the repositories have.")
    parser.add_argument("distribution", help="a file of roles/nvidia_driver/vars, such as debian_12")
    parser.add_argument("source", choices=["distribution", "nvidia"])
    parser.add_argument("--archive", help="address of the distribution's archive; without it the first one that apt has here")
    given = parser.parse_args(argv)
    archive = given.archive
    if not archive and given.source == "distribution":
        archive = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).split()[0]
    made = record(given.distribution, given.source, archive or "")
    (RECORDS / f"{given.distribution}.{given.source}.json").write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
