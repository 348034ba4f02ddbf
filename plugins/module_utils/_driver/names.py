# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of packages: those that the data of a distribution has for a driver's branch, and the installed ones that they mean.

Pure. A name of the data has parts in braces. A name with a range is {name, from, before, machines}.
"""

from __future__ import annotations

import re
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Set

from .facts import HostFacts

# The parts that the braces in a name of the data stand for: parts that another driver has otherwise, and those that another kernel has.
_OF_DRIVER = {"any": "[a-z0-9.-]+", "branch": "[0-9]+", "suffix": "(?:-[0-9]+)?", "fabric_suffix": "(?:-[0-9]+)?", "version": "[0-9.]+"}
_OF_KERNEL = {"release": "[0-9].*", "kernel": "[0-9].*", "kernel_base": "[0-9].*"}
_EITHER = {**_OF_DRIVER, **_OF_KERNEL}
_IMAGE = "linux-image-"


class Names:
    """Of one host and one driver. unbranched: the first branch whose packages have no branch in their names, 0 for none."""

    def __init__(self, facts: HostFacts, version: str, unbranched: int) -> None:
        self._facts = facts
        self._version = version
        self._unbranched = unbranched
        self.branch = int(version.partition(".")[0])

    def chosen(self, names: Optional[Sequence[Any]]) -> List[str]:
        """The names that the source has for this branch and machine."""
        found = []
        for listed in names or ():
            fields: Mapping[str, Any] = listed if isinstance(listed, dict) else {"name": listed}
            fits = fields.get("from", 0) <= self.branch < fields.get("before", 10**6)
            if fits and self._facts.machine in fields.get("machines", (self._facts.machine,)):
                found.append(fields["name"])
        return found

    def parts(self, release: str = "") -> Dict[str, str]:
        """The values that the data's names may have in braces. release: of the kernel, "" for the running one."""
        release = release or self._facts.release
        kernel = re.sub(rf"\.{re.escape(self._facts.machine)}(\+[a-z0-9]+)?$", "", release)
        return {
            "any": "",
            "branch": str(self.branch),
            "suffix": "" if self._unbranched and self.branch >= self._unbranched else f"-{self.branch}",
            "fabric_suffix": "" if self.branch >= 580 else f"-{self.branch}",
            "version": self._version,
            "release": release,
            "kernel": kernel,
            "kernel_base": re.sub(r"\.el[0-9_]+$", "", kernel),
            "flavour": release.rpartition("-")[2],
        }

    def full(self, names: Sequence[str], release: str = "") -> List[str]:
        return [name.format(**self.parts(release)) for name in names]

    def following_modules(self, names: Sequence[str]) -> List[str]:
        """The packages that bring the precompiled modules of later kernels, of the flavour of those that bring the kernels."""
        # linux-image-virtual brings the kernel of linux-image-generic.
        flavours = [re.sub(r"^virtual\b", "generic", package[len(_IMAGE) :]) for package in self._facts.kernel_packages]
        return [
            name.format(**{**self.parts(), "release": flavour}) for name in names if name.endswith("-{release}") for flavour in flavours
        ]

    def following_headers(self, names: Sequence[str]) -> Sequence[str]:
        """The packages that bring the headers of later kernels. names: where no package is known that brings the kernels."""
        return [package.replace(_IMAGE, "linux-headers-", 1) for package in self._facts.kernel_packages] or names

    def installed(self, names: Sequence[str]) -> Set[str]:
        """The installed packages that the names mean, of whatever driver and kernel."""
        return set().union(*(self._like(name, _EITHER) for name in names))

    def replaced(self, planned: Sequence[str], others: AbstractSet[str]) -> Set[str]:
        """The installed packages that conflict with the planned ones: the others, and those with another driver in their names."""
        return self.installed(planned) - set().union(*(self._like(name, _OF_KERNEL) for name in planned)) | self.installed(sorted(others))

    def _like(self, name: str, shapes: Mapping[str, str]) -> Set[str]:
        """The installed packages that a name means, where the parts in `shapes` may be any."""
        now, parts = self.parts(), re.split(r"\{([a-z_]+)\}", name)
        words = [re.escape(word) if place % 2 == 0 else shapes.get(word) or re.escape(now[word]) for place, word in enumerate(parts)]
        return {package for package in self._facts.packages if re.fullmatch("".join(words), package)}


def every(names: Optional[Sequence[Any]]) -> List[str]:
    """The names for all branches and machines."""
    return [listed["name"] if isinstance(listed, dict) else listed for listed in names or ()]
