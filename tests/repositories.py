#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Records which of the names in roles/nvidia_driver/vars the repositories have: `python tests/repositories.py DISTRIBUTION SOURCE`.

A unit test compares the data of the role with the record. apt reads apt's repositories, dnf those of rpm packages, into a folder of
their own: nothing of this machine changes. Only names that the data could mean are kept, with the branches that they name.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
RECORDS: Final = ROOT / "tests/unit/plugins/driver/repositories"
# The distributions' own archives, by machine; NVIDIA's address is in the data.
_DEBIAN: Final = "http://deb.debian.org/debian {} main non-free"
_UBUNTU: Final = {"x86_64": "http://archive.ubuntu.com/ubuntu {} main restricted", "aarch64": "http://ports.ubuntu.com/ubuntu-ports {} main restricted"}
_ARCHIVES: Final = {
    "debian_12": ("bookworm",),
    "debian_13": ("trixie",),
    "ubuntu_22.04": ("jammy", "jammy-updates"),
    "ubuntu_24.04": ("noble", "noble-updates"),
    "ubuntu_26.04": ("resolute", "resolute-updates"),
}
_OF_APT: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_SECONDS: Final = 900
# Parts of names that are of the driver, and any other: of the kernel.
_PARTS: Final = {"branch": r"(?P<branch>\d{3})", "suffix": r"(?:-(?P<branch>\d{3}))?", "fabric_suffix": r"(?:-(?P<branch>\d{3}))?"}


def data_of(distribution: str) -> dict[str, Any]:
    """The data of a distribution, with that of the one that it is like."""
    own = yaml.safe_load((ROOT / f"roles/nvidia_driver/vars/{distribution}.yml").read_text())["__nvidia_driver_data"]
    return _merged(data_of(own["like"]), own) if "like" in own else own


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(above[key], dict)}
    return {**below, **above, **both}


def named(source: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """(name with its parts in braces, first branch, first branch that no longer has it) of all that a source's data may install."""
    groups = [source.get(key) or [] for key in ("driver", "beside", "fabric", "nvlink5")]
    groups += [names for key in ("dkms", "precompiled") for names in (source.get(key) or {}).values()]
    for one in (one for group in groups for one in group):
        fields = one if isinstance(one, dict) else {"name": one}
        yield fields["name"], fields.get("from", 0), fields.get("before", 10**6)


def pattern(name: str) -> re.Pattern[str]:
    """What a name of the data stands for. Its group `branch` is the driver's branch, None for a name without one."""
    words = re.split(r"\{([a-z_]+)\}", name)
    return re.compile("".join(re.escape(word) if at % 2 == 0 else _PARTS.get(word, "[a-z0-9.+_-]+") for at, word in enumerate(words)))


def record(distribution: str, source: str) -> dict[str, Any]:
    """What the repositories of a source have now: names by machine, those of kernels with one kernel only."""
    data = data_of(distribution)["sources"][source]
    names = [name for name, _, _ in named(data)]
    found: dict[str, list[str]] = {}
    for machine in data["machines"]:
        there, kept = _apt(distribution, source, data, machine) if _is_apt(distribution) else _dnf(data, machine), dict[tuple[str, str], str]()
        for one in sorted(there):
            for name in names:
                if match := pattern(name).fullmatch(one):
                    # A name with the kernel's release is there once for each release: any one shows that it is right.
                    kept[name, match.groupdict().get("branch") or ""] = one
        found[machine] = sorted(set(kept.values()))
        if not found[machine]:
            raise SystemExit(f"{distribution} {source} {machine}: the repositories have none of the names; is the address right?")
    return {"distribution": distribution, "source": source, "read": datetime.date.today().isoformat(), "names": found}


def _is_apt(distribution: str) -> bool:
    return distribution.startswith(("debian", "ubuntu"))


def _apt(distribution: str, source: str, data: dict[str, Any], machine: str) -> set[str]:
    architecture = _OF_APT[machine]
    if source == "distribution":
        line = _DEBIAN if distribution.startswith("debian") else _UBUNTU[machine]
        lines = [line.format(suite) for suite in _ARCHIVES[distribution]]
    else:
        lines = [f"{_address(data, machine)}/ /"]
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
        return set(_run(["apt-cache", *options, "pkgnames"]).split())


def _dnf(data: dict[str, Any], machine: str) -> set[str]:
    repository = f"--repofrompath=recorded,{_address(data, machine)}"
    arguments = ["--repo=recorded", f"--forcearch={machine}", "--nogpgcheck", "repoquery", "--qf=%{name}\n"]
    return set(_run(["dnf", "-q", repository, *arguments]).split())


def _address(data: dict[str, Any], machine: str) -> str:
    repository = data["repository"]
    return str(repository["url"]).format(machine=repository.get("machines", {}).get(machine, machine))


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def main(argv: list[str] | None = None) -> int:
    """Write the record of one source of one distribution."""
    parser = argparse.ArgumentParser(description="Record the names of driver packages that the repositories have.")
    parser.add_argument("distribution", help="a file of roles/nvidia_driver/vars, such as debian_12")
    parser.add_argument("source", choices=["distribution", "nvidia"])
    given = parser.parse_args(argv)
    RECORDS.mkdir(exist_ok=True)
    made = record(given.distribution, given.source)
    (RECORDS / f"{given.distribution}.{given.source}.json").write_text(json.dumps(made, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
