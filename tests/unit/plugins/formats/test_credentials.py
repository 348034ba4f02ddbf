# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Users and passwords in URLs."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.credentials import secrets_in, without_credentials


@pytest.mark.parametrize(
    ("text", "shown", "secret"),
    [
        ("--index-url https://deploy:s3cr3t@nexus.corp/simple", "--index-url https://***@nexus.corp/simple", ["s3cr3t"]),
        (
            "Looking at 'http://t0ken@x:8080/a@b' and http://a:bcde@f@d/",
            "Looking at 'http://***@x:8080/a@b' and http://***@d/",
            ["t0ken@", "bcde@f"],
        ),
        ("https://nexus.corp/simple/x@1.2 a@b", "https://nexus.corp/simple/x@1.2 a@b", []),
        ("git+https://u:p%40ss@h/r.git", "git+https://***@h/r.git", ["p%40ss", "p@ss"]),
        # Alone they would hide every 0 of a run.
        ("--retries 0 --proxy=http://u:0@h --proxy http://u:%30%30%30@h", "--retries 0 --proxy=http://***@h --proxy http://***@h", None),
    ],
)
def test_no_credential_of_an_index_is_shown(text: str, shown: str, secret: "list[str] | None") -> None:
    assert without_credentials(text) == shown
    assert secrets_in([text]) == (["u:0@", "u:%30%30%30@"] if secret is None else secret)


def test_each_secret_of_several_texts_is_named_once() -> None:
    assert secrets_in(["http://a:word@h", "x", "http://a:word@i http://b:more@h"]) == ["word", "more"]
