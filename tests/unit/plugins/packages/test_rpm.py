# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""dnf's and rpm's command lines and files. The real programs are in tests/packages and tests/driver_host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages import dnf, zypper
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.dnf import Dnf
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.model import (
    Package,
    PackagePlan,
    PackagesError,
    PackageSet,
    Repository,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.openpgp import Key
from hypothesis import given
from hypothesis import strategies as st

REPOSITORY = Repository("driver", "https://example.org/rpm", (Key("610C7B14E068A878070DA4E99CD0A493D42D0685", b"key"),))
VERSIONS = {"kmod-nvidia-open-dkms": "3:580.126.20-1.el9"}


class Commands:
    """What was run; each answers the same."""

    def __init__(self, out: str = "", status: int = 0) -> None:
        self.run: list[list[str]] = []
        self._out, self._status = out, status

    def __call__(self, argv: list[str], _timeout: float) -> Outcome:
        self.run.append(argv)
        return Outcome(argv, self._status, self._out, "no such key" if self._status else "")


def test_all_streams_of_a_module_are_in_sight() -> None:
    """NVIDIA's repository for EL has each branch and kind of driver in a stream, and dnf hides all streams but the default one."""
    text = Dnf(Commands()).files(REPOSITORY)["/etc/yum.repos.d/gpushare-driver.repo"]
    assert text is not None
    assert "\nmodule_hotfixes=1\n" in text.decode()


@pytest.mark.parametrize(
    ("status", "fails"), [(0, []), (100, ["rpmkeys"]), (106, ["rpmkeys"]), (107, ["rpmkeys", "zypper"]), (1, ["rpmkeys", "zypper"])]
)
def test_only_zypper_is_done_with_a_status_that_tells_more(status: int, fails: list[str]) -> None:
    manager, found = zypper.Zypper(Commands(status=status)), []
    for name, call in (("rpmkeys", lambda: manager.refresh(REPOSITORY)), ("zypper", lambda: manager.remove(["a"]))):
        try:
            call()
        except PackagesError:
            found.append(name)
    assert found == fails


# In two repositories, installed only, from nowhere, and of another name.
SEARCH = """<?xml version='1.0'?><stream><search-result><solvable-list>
  <solvable kind="package" name="a" edition="0:1.9-1" repository="r"/><solvable kind="package" name="a" edition="1.10-1" repository="r"/>
  <solvable kind="package" name="a" edition="1.10-1" repository="s"/><solvable kind="package" name="b" edition="4-1" repository="r"/>
  <solvable kind="package" name="a" edition="2-1" repository="(System Packages)"/><solvable kind="package" name="a" edition="3-1"/>
</solvable-list></search-result></stream>"""


@pytest.mark.parametrize(("status", "found"), [(0, ["1.10-1", "1.9-1"]), (106, ["1.10-1", "1.9-1"]), (104, []), (6, [])])
def test_zypper_has_the_versions_that_repositories_have(status: int, found: list[str]) -> None:
    assert zypper.Zypper(Commands(SEARCH, status)).available("a") == found


def test_dnf_has_the_versions_that_repositories_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnf, "CONFIG", str(tmp_path / "dnf.conf"))
    assert Dnf(Commands("a\t0:1.9-1\na\t3:1.10-1\na\t3:1.10-1\nb\t0:4-1\n")).available("a") == ["3:1.10-1", "1.9-1"]


@pytest.mark.parametrize("manager", [Dnf, zypper.Zypper])
def test_repositories_that_do_not_answer_are_no_repositories_without_the_package(
    manager: type[Dnf | zypper.Zypper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnf, "CONFIG", str(tmp_path / "dnf.conf"))
    with pytest.raises(Rejected, match="such key"):
        manager(Commands(status=1)).available("a")


def test_no_stream_is_enabled_by_an_installation() -> None:
    text = Dnf(Commands()).files(replace(REPOSITORY, modules=("nvidia-driver",)))["/etc/dnf/modules.d/nvidia-driver.module"]
    assert text == b"[nvidia-driver]\nname=nvidia-driver\nstream=\nprofiles=\nstate=disabled\n"


def test_what_is_wanted_is_not_excluded_and_the_rest_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dnf adds an exclude of its command line to those of its file, except after an empty one."""
    config = tmp_path / "dnf.conf"
    monkeypatch.setattr(dnf, "CONFIG", str(config))
    wanted = PackageSet("driver", (Package("a"),), replaces=("b",))
    for text, option in (
        ("[main]\nexcludepkgs=a b kernel*\n", ["--setopt=excludepkgs=,kernel*"]),
        ("[main]\nexcludepkgs=b\n", ["--setopt=excludepkgs="]),
        ("[main]\nexcludepkgs=kernel*\n", []),
        ("[main]\n", []),
    ):
        config.write_text(text)
        commands = Commands()
        Dnf(commands).install(wanted, PackagePlan({"a": "1-1"}, ()))
        assert [word for word in commands.run[-1] if word.startswith("--setopt")] == option
        # dnf removes nothing that is excluded, which is what holds the packages until they go.
        commands = Commands()
        Dnf(commands).plan_removal(["a", "b"])
        assert [word for word in commands.run[-1] if word.startswith("--setopt=excludepkgs")] == option


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("[main]\nexcludepkgs=a b\n", ["a", "b"]),
        ("[main]\nexcludepkgs = a, b ,c\n", ["a", "b", "c"]),
        # Of one key the last value counts, and the two keys add up.
        ("[main]\nexcludepkgs=a\nexcludepkgs=b\n", ["b"]),
        ("[main]\nexclude=a\nexcludepkgs=b\n", ["a", "b"]),
        ("[main]\nexclude=a\nexcludepkgs=,b\n", ["b"]),
        ("[main]\nexclude=a\nexcludepkgs=\n", []),
        # Only those of [main], which may be there twice.
        ("[other]\nexclude=a\n[main]\ngpgcheck=1\n", []),
        ("[main]\ngpgcheck=1\n[other]\nexcludepkgs=a\n", []),
        ("[main]\nexcludepkgs=a\n[other]\nx=1\n[main]\nexcludepkgs=b\n", ["b"]),
        # A value goes on in lines that are indented; a comment or an empty line ends it.
        ("[main]\nexcludepkgs=a\n  b\n\tc\n   \n d\n", ["a", "b", "c", "d"]),
        ("[main]\nexcludepkgs=a\n#c\n", ["a"]),
        ("[main]\nexcludepkgs='a b'\n", ["a", "b"]),
        ("[main]\n#excludepkgs=a\n;excludepkgs=b\nexcludepkgs_x=c\n", []),
        ("\ufeff[main]\nexcludepkgs=a\n", ["a"]),
        ("[main]\r\nexcludepkgs=a\r\n", ["a"]),
        ("  [main]  # it\nexcludepkgs=a\n", ["a"]),
    ],
)
def test_what_dnf_excludes(text: str, found: list[str]) -> None:
    """As libdnf reads the file: its iniparser.cpp, ConfigParser.cpp and Config-private.hpp."""
    assert dnf.excluded(text) == found
    for names in ([*found, "ours"], ["ours"], []):
        after = dnf.excluding(text, names)
        assert dnf.excluded(after) == names, after
        others = [line for line in text.splitlines() if "exclude" not in line and not line.startswith((" b", " d", "  b", "\tc", "   "))]
        assert [line for line in after.splitlines() if line in others] == others
    assert dnf.excluding(text, found) == text


LINES = st.sampled_from(
    [
        "[main]",
        "[other]",
        "exclude=a",
        "excludepkgs = b, c",
        "excludepkgs=",
        "exclude=,d",
        "  e",
        "\tf",
        "",
        "   ",
        "#x",
        ";y",
        "gpgcheck=1",
        "z",
    ]
)


def is_one(lines: list[str]) -> bool:
    """Whether dnf reads it: keys stand in a section, and only what follows a key is indented."""
    section = key = False
    for line in lines:
        indented = line[:1] in (" ", "\t") and bool(line.strip())
        if (indented and not key) or ("=" in line and not indented and not section):
            return False
        section = section or line.startswith("[")
        key = (key and line[:1] in (" ", "\t")) or "=" in line
    return True


DOCUMENTS = st.lists(LINES, max_size=8).filter(is_one)


@given(DOCUMENTS, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.lists(st.sampled_from("abxy"), max_size=3, unique=True))
def test_whatever_dnf_conf_is_like_what_is_written_is_what_is_read(lines: list[str], newline: str, ends: bool, names: list[str]) -> None:
    text = newline.join(lines) + (newline if ends else "")
    after = dnf.excluding(text, names)
    assert dnf.excluded(after) == names
    assert dnf.excluding(after, names) == after
    assert dnf.excluded(dnf.without(after, ["a"])) == [name for name in names if name != "a"]


DUMPED = "======= main =======\n[main]\ncachedir = /var/cache/dnf\nexcludepkgs = {}\nexit_on_lock = 0\n"


@pytest.mark.parametrize(
    ("out", "status", "raises"),
    [(DUMPED.format("kernel*, a"), 0, False), (DUMPED.format("b"), 0, True), (DUMPED.format(""), 0, True), ("", 0, False), ("", 1, False)],
)
def test_dnf_itself_is_asked_what_it_excludes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, status: int, raises: bool) -> None:
    monkeypatch.setattr(dnf, "CONFIG", str(tmp_path / "dnf.conf"))
    monkeypatch.setattr(dnf, "PLUGIN", str(tmp_path / "versionlock.conf"))

    def run(argv: list[str], _timeout: float) -> Outcome:
        return Outcome(argv, 0, "a\t0:1-1\tnoarch\n") if argv[0] == "rpm" else Outcome(argv, status, out)

    if raises:
        with pytest.raises(PackagesError, match="excludes a, and dnf does not"):
            Dnf(run).hold(["a"], True)
    else:
        Dnf(run).hold(["a"], True)
    assert (tmp_path / "dnf.conf").read_text() == "[main]\nexcludepkgs=a\n"


def test_zypper_removes_what_makes_room_although_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = tmp_path / "locks"
    monkeypatch.setattr(zypper, "LOCKS", str(locks))
    locks.write_text(zypper.with_locks("", ["a", "b", "other"]))
    seen: list[list[str]] = []

    def run(argv: list[str], _timeout: float) -> Outcome:
        seen.append(zypper.locked(locks.read_text()))
        return Outcome(argv, 0, "b\t0:1-1\tnoarch\n" if argv[0] == "rpm" else "")

    zypper.Zypper(run).install(PackageSet("driver", (Package("a"),), replaces=("b",)), PackagePlan({"a": "1-1"}, ()))
    assert seen == [["other"], ["other"]]
    assert sorted(zypper.locked(locks.read_text())) == ["a", "b", "other"]


def test_only_what_may_go_makes_room() -> None:
    """A kernel module of the other kind conflicts; dnf removes nothing by itself."""
    packages, plan = (Package("kmod-nvidia-open-dkms", "580.126.20"),), PackagePlan(VERSIONS, ())
    for replaces, option in (((), False), (("kmod-nvidia-latest-dkms",), True)):
        commands = Commands()
        Dnf(commands).install(PackageSet("driver", packages, REPOSITORY, replaces=replaces), plan)
        assert ("--allowerasing" in commands.run[-1]) == option
        assert commands.run[-1][-2:] == ["install", "kmod-nvidia-open-dkms-3:580.126.20-1.el9"]


def test_keys_in_the_database() -> None:
    (own,), other = [key.fingerprint for key in REPOSITORY.keys], "F" * 40
    # rpm up to 4.20 has the end of the fingerprint, rpm 6 all of it.
    for version in ("d42d0685", own.lower()):
        assert Dnf(Commands(f"fd431d51\t4ae0493b\n{version}\t62589a51\n")).trusted([own, other]) == {own: f"{version}-62589a51"}
    for odd in ("", "garbage", "5\t1\n", "\t\n"):
        assert Dnf(Commands(odd)).trusted([own]) == {}
    commands = Commands()
    assert Dnf(commands).distrust({own: "d42d0685-62589a51"}) == []
    assert commands.run == [["rpm", "--erase", "--allmatches", "gpg-pubkey-d42d0685-62589a51"]]
    assert Dnf(Commands(status=1)).distrust({own: "d42d0685-62589a51"}) == [
        {"what": "key gpg-pubkey-d42d0685-62589a51 in rpm's database", "why": "rpm does not remove it: no such key"}
    ]


def test_keys_of_a_repository_whose_packages_are_not_signed_are_in_no_database() -> None:
    assert Dnf(Commands()).imports(REPOSITORY) == [REPOSITORY.keys[0].fingerprint]
    assert Dnf(Commands()).imports(Repository("x", "https://example.org", REPOSITORY.keys, package_signatures=False)) == []
