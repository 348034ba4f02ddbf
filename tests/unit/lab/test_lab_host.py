# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a node takes over from the machine, and what the machine gets back."""

from __future__ import annotations

from pathlib import Path

from pip._internal.configuration import Configuration

from gpushare_lab import host_firewall, host_sysctls
from gpushare_lab.host_settings import ca_bundle, pip_conf, pip_settings


def test_the_environment_wins_over_files_and_later_files_over_earlier() -> None:
    texts = ["[global]\nindex-url = https://a/simple\ntimeout = 5\n", "[global]\nindex_url = https://b/simple\n"]
    assert pip_settings({}, texts) == {"index-url": "https://b/simple", "timeout": "5"}
    assert pip_settings({"PIP_INDEX_URL": "https://c/simple"}, texts)["index-url"] == "https://c/simple"


def test_folders_of_this_machine_are_dropped_and_addresses_stay() -> None:
    settings = pip_settings({"PIP_FIND_LINKS": "/opt/wheels https://mirror/wheels", "PIP_CERT": "/root/ca.pem"}, [])
    assert settings == {"find-links": "https://mirror/wheels"}
    assert pip_settings({"PIP_FIND_LINKS": "/opt/wheels", "PIP_INDEX_URL": "file:///srv/simple"}, []) == {}


def test_a_proxy_of_the_machine_is_used_unless_pip_has_its_own() -> None:
    assert pip_settings({"https_proxy": "http://proxy:3128"}, []) == {"proxy": "http://proxy:3128"}
    assert pip_settings({"https_proxy": "http://a", "PIP_PROXY": "http://b"}, []) == {"proxy": "http://b"}


def test_pip_reads_what_is_written_for_it(tmp_path: Path) -> None:
    settings = {"index-url": "https://a/simple?x=%20", "find-links": "https://b https://c", "timeout": "180"}
    path = tmp_path / "pip.conf"
    path.write_text(pip_conf(settings))
    configuration = Configuration(isolated=True)
    parser = configuration._construct_parser(str(path))
    found = dict(parser.items("global"))
    assert found["index-url"] == "https://a/simple?x=%20"
    assert found["find-links"].split() == ["https://b", "https://c"]
    assert found["cert"] == "/etc/ssl/certs/ca-certificates.crt"


def test_the_bundle_is_the_one_that_the_environment_names(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    assert ca_bundle({"SSL_CERT_FILE": str(bundle), "PIP_CERT": "/does/not/exist"}) == bundle


SAVED_BEFORE = """*filter
:FORWARD ACCEPT [0:0]
:MINE - [0:0]
-A FORWARD -j MINE
COMMIT
"""
SAVED_AFTER = """*filter
:FORWARD ACCEPT [3:9]
:MINE - [0:0]
:NETAVARK_FORWARD - [0:0]
-A FORWARD -j MINE
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:NETAVARK-HOSTPORT-MASQ - [0:0]
-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ
COMMIT
"""


def removals(before: str, now: str) -> list[list[str]]:
    return host_firewall.removals(host_firewall.podman_rules(before), host_firewall.podman_rules(now))


def test_chains_that_podman_left_are_removed_rules_first() -> None:
    assert removals(SAVED_BEFORE, SAVED_AFTER) == [
        ["-t", "filter", "-D", "FORWARD", "-m", "comment", "--comment", "netavark firewall plugin rules", "-j", "NETAVARK_FORWARD"],
        ["-t", "nat", "-D", "POSTROUTING", "-j", "NETAVARK-HOSTPORT-MASQ"],
        ["-t", "filter", "-X", "NETAVARK_FORWARD"],
        ["-t", "nat", "-X", "NETAVARK-HOSTPORT-MASQ"],
    ]


def test_chains_that_were_there_before_the_lab_stay() -> None:
    assert removals(SAVED_AFTER, SAVED_AFTER) == []


def test_nothing_is_removed_while_a_network_of_podman_has_containers() -> None:
    assert removals(SAVED_BEFORE, SAVED_AFTER + "*nat\n:NETAVARK-D63FF0A015E16 - [0:0]\nCOMMIT\n") == []


def fake_sysctls(folder: Path, **values: int) -> None:
    for key, value in {"vm/overcommit_memory": 0, "kernel/panic": 0, "fs/inotify/max_user_instances": 128, **values}.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_text(f"{value}\n")


def test_kernel_settings_come_back_unless_somebody_changed_them_since(tmp_path: Path) -> None:
    proc, record = tmp_path / "sys", tmp_path / "record.json"
    fake_sysctls(proc)
    host_sysctls.prepare(record, proc)
    assert (proc / "fs/inotify/max_user_instances").read_text() == "2048"
    # A kubelet sets these; then somebody else sets one of them.
    (proc / "vm/overcommit_memory").write_text("1\n")
    (proc / "kernel/panic").write_text("30\n")
    host_sysctls.prepare(record, proc)
    host_sysctls.restore(record, proc)
    assert (proc / "vm/overcommit_memory").read_text() == "0"
    assert (proc / "kernel/panic").read_text() == "30\n"
    assert (proc / "fs/inotify/max_user_instances").read_text() == "128"
    assert not record.exists()


def test_a_limit_that_is_higher_already_stays(tmp_path: Path) -> None:
    fake_sysctls(tmp_path, **{"fs/inotify/max_user_instances": 8192})
    host_sysctls.prepare(tmp_path / "record.json", tmp_path)
    assert (tmp_path / "fs/inotify/max_user_instances").read_text() == "8192\n"
