# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""uninstall.yml by the same user leaves the hosts as they were."""

from __future__ import annotations

from installer.site import Untouched, differences
from inventory.conftest import MakeSite


def test_afterwards_everything_is_as_it_was(site: MakeSite, untouched: Untouched) -> None:
    by_user = site(False)
    untouched.cluster.clear()
    assert len(differences(untouched.state, by_user.state())) > 20
    _results, output = by_user.uninstall()
    # kubelet names a removed plugin's resources for five minutes: the suite `uninstall` waits for their end.
    assert differences(untouched.state, by_user.state(resources=False)) == [], output
