# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who may read: the token, the file that it comes from, and the names that the server answers to."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.dashboard.access import AccessError, FixedToken, Hosts, TokenFile, is_authorized


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Bearer correct-horse-battery", True),
        ("bearer correct-horse-battery", False),
        ("Bearer correct-horse-batter", False),
        ("Bearer correct-horse-battery ", False),
        ("correct-horse-battery", False),
        ("Basic correct-horse-battery", False),
        ("Bearer \udcff\u1234", False),
        ("", False),
        (None, False),
    ],
)
def test_only_the_token_itself_is_accepted(header: str | None, accepted: bool) -> None:
    assert is_authorized(header, FixedToken("correct-horse-battery")) is accepted


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("0123456789abcdef\n")
    token = TokenFile(file)
    assert token.current() == "0123456789abcdef"
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_text("fedcba9876543210")
    other.rename(file)
    assert token.current() == "fedcba9876543210"
    file.unlink()
    with pytest.raises(AccessError, match="cannot read the token file"):
        token.current()


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"", 0o600, "found 0 characters"),
        (b"short", 0o600, "found 5 characters"),
        (b"0123456789 abcdef", 0o600, "without spaces"),
        (b"0123456789abcde\xff", 0o600, "printable ASCII"),
        (b"x" * 5000, 0o600, "found 4097 characters"),
        (b"0123456789abcdef", 0o604, "mode 0604, open to every user"),
    ],
)
def test_a_token_that_is_weak_or_open_to_all_is_none(content: bytes, mode: int, message: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(AccessError, match=message):
        TokenFile(file).current()


LOCAL = Hosts("127.0.0.1", 8080)


@pytest.mark.parametrize("header", ["127.0.0.1:8080", "localhost:8080", "LocalHost:8080", "[::1]:8080", "localhost.:8080"])
def test_the_names_of_loopback_are_this_server(header: str) -> None:
    assert LOCAL.accepts(header)


@pytest.mark.parametrize(
    "header",
    [None, "", "127.0.0.1", "localhost", "127.0.0.1:8081", "evil.example:8080", "127.0.0.1.evil.example:8080", "localhost:8080:8080",
     "10.0.0.1:8080", "127.0.0.1:8080@evil.example", "0.0.0.0:8080", "[::1]"],
)  # fmt: skip
def test_another_name_is_not_as_a_rebound_one_would_be(header: str | None) -> None:
    assert not LOCAL.accepts(header)


def test_a_service_answers_to_its_address_and_to_the_names_it_was_given() -> None:
    hosts = Hosts("10.0.0.5", 443, ["gpu.example.org"])
    assert hosts.accepts("10.0.0.5")
    assert hosts.accepts("10.0.0.5:443")
    # A proxy in front has a port of its own.
    assert hosts.accepts("gpu.example.org")
    assert hosts.accepts("GPU.example.org:8443")
    assert not hosts.accepts("localhost:443")
    assert not hosts.accepts("example.org")
    assert "10.0.0.5:443" in hosts.expected()
    assert Hosts("::1", 80).accepts("[::1]")
