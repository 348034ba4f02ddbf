# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a token says about itself, and which of several is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.kube.service_account import TokenError, best, parse_token, read_token
from unit.fakes.runtime.kube.tokens import jwt


def test_claims() -> None:
    token = parse_token(jwt(1000, 4000) + "\n")
    assert (token.issued, token.expires, token.namespace, token.account) == (1000, 4000, "kube-system", "gpushare-extender")
    assert token.due == 2000
    assert (token.expired(3999), token.expired(4000)) == (False, True)
    assert parse_token(jwt(0, 1771495200)).ends == "2026-02-19T10:00:00Z"


def test_a_token_is_never_shown() -> None:
    text = jwt(1000, 4000)
    assert text not in repr(parse_token(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 characters that are not a token; expected the token of a service account"),
        ("a.b", "3 characters that are not a token"),
        ("a.###.c", "whose claims cannot be read"),
        ("a.bm90aGluZw.c", "whose claims cannot be read"),
        (jwt(0, 1, sub="jane"), "a token of 'jane'"),
        (jwt(0, 1, sub=5), "whose claims cannot be read"),
        (jwt(0, 1, sub="system:serviceaccount:a"), "whose claims cannot be read"),
        (jwt(0, 1, sub="system:serviceaccount::b"), "whose claims cannot be read"),
        (jwt(0, 1, sub="system:serviceaccount:..:b"), "whose claims cannot be read"),
        (jwt(0, 1, sub="system:serviceaccount:a:b:c"), "whose claims cannot be read"),
        (jwt(1, 0), "whose claims cannot be read"),
        (jwt(0, 10**30), "whose claims cannot be read"),
        (jwt(0, 1, exp="nan"), "whose claims cannot be read"),
        (jwt(0, 1, exp=None), "without the claim 'exp', such as the one of a Secret"),
        (jwt(0, 1, exp="soon"), "whose claims cannot be read"),
    ],
)
def test_what_is_no_token(text: str, said: str) -> None:
    with pytest.raises(TokenError) as caught:
        parse_token(text)
    assert said in str(caught.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(TokenError, match=r"^is missing$"):
        read_token(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TokenError, match=r"^holds no text"):
        read_token(file)
    file.write_text("x")
    with pytest.raises(TokenError, match=r"^holds 1 characters that are not a token"):
        read_token(file)
    with pytest.raises(TokenError, match=r"^cannot be read: Is a directory"):
        read_token(tmp_path)
    file.write_text(jwt(1, 2))
    assert read_token(file).issued == 1


def test_the_newest_that_should_work() -> None:
    old, new, ended = (parse_token(jwt(*times)) for times in ((100, 900), (200, 800), (300, 400)))
    everything = [old, ended, new]
    assert best([], frozenset(), 500) is None
    assert best(everything, frozenset(), 350) == ended
    assert best(everything, frozenset(), 500) == new
    assert best(everything, frozenset({new.text}), 500) == old
    assert best(everything, frozenset({new.text, old.text}), 500) == new
    assert best(everything, frozenset(), 1000) == ended
