# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secrets that Ansible is to mask wherever it shows something.

An option with `no_log` says more than that: from ansible-core 2.22 on, each item of a list is masked in all output of the run, however
short it is, so "0" would be masked in the recap, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..module_utils._formats.credentials import secrets_in

try:
    from ansible.module_utils.secrets import register_secrets  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError:
    # ansible-core before 2.22 masks nothing outside of the answers of a module that knows the secret.
    register_secrets = None


def mask_passwords(texts: Iterable[str]) -> None:
    """Have the passwords of the URLs in these texts masked, where Ansible can."""
    if register_secrets is not None:
        register_secrets(secrets_in(texts))
