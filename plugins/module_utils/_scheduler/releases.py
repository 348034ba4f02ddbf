# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that a kube-scheduler of each release reads: a Policy, or which versions of its configuration; and how each of them writes an
extender.

Pure. Source: `cmd/kube-scheduler/app/options` and `kube-scheduler/config` of the releases themselves. None of them converts: from 1.22 on
--write-config-to writes the version that was read (encodeConfig in configfile.go, read on 2026-11-29), and up to 1.21 each release reads
one, or 1.18 two in alpha.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Tuple

Release = Tuple[int, int]

GROUP = "kubescheduler.config.k8s.io/"
V1 = GROUP + "v1"
#: apiVersion of a configuration to the minor releases of Kubernetes 1 that read it, first and last; None for no end.
API_VERSIONS: Mapping[str, Tuple[int, Optional[int]]] = {
    "componentconfig/v1alpha1": (8, 11),
    GROUP + "v1alpha1": (12, 18),
    GROUP + "v1alpha2": (18, 18),
    GROUP + "v1beta1": (19, 22),
    GROUP + "v1beta2": (22, 27),
    GROUP + "v1beta3": (23, 28),
    V1: (25, None),
}
#: The versions in which an extender is written as in a Policy. The first two have no extenders, and name a Policy.
ALPHA = ("componentconfig/v1alpha1", GROUP + "v1alpha1", GROUP + "v1alpha2")
#: The last release that reads a Policy, and the first one whose configuration has extenders of its own in a stable form.
LAST_POLICY: Release = (1, 22)
FIRST_CONFIGURATION: Release = (1, 19)
#: The first release whose schedulers elect their leader by a Lease, and not by an annotation of Endpoints.
FIRST_LEASE: Release = (1, 17)
#: The last release whose schedulers, with a configuration, listen without TLS where it says so, whatever their flags are.
LAST_INSECURE: Release = (1, 22)
_TAG = re.compile(r":v?([0-9]{1,3})\.([0-9]{1,3})\.[0-9]")
_VERSION = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,3})")


def release_of(image: str, server: str = "") -> Optional[Release]:
    """The release of the scheduler: that of its image's tag, else that of the API server's version. None if neither says one."""
    match = _TAG.search(image.partition("@")[0]) or _VERSION.match(server)
    return None if match is None else (int(match.group(1)), int(match.group(2)))


def reads(release: Optional[Release], api_version: str) -> bool:
    """Whether this release reads a configuration of that version. Of an unknown release, any that we know."""
    found = API_VERSIONS.get(api_version)
    if found is None or release is None:
        return found is not None
    first, last = found
    return release[0] == 1 and first <= release[1] and (last is None or release[1] <= last)


def newest(release: Optional[Release]) -> str:
    """The newest version of the configuration that this release reads; v1 for an unknown release."""
    return V1 if release is None else ([version for version in API_VERSIONS if reads(release, version)] or [V1])[-1]


def readable(release: Release) -> List[str]:
    """The versions that this release reads, newest first."""
    return [version for version in reversed(list(API_VERSIONS)) if reads(release, version)]


def that_reads_both(release: Release, api_version: str) -> Optional[Release]:
    """The newest release that reads this version and one that the given release reads; None if there is none."""
    minors = range(8, 41)
    both = [
        minor for minor in minors if reads((1, minor), api_version) and any(reads((1, minor), version) for version in readable(release))
    ]
    return (1, both[-1]) if both else None
