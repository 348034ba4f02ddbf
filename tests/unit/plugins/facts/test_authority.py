# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The hashes of the certificate authorities that a host's kubelet believes."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.authority import authorities, hashes
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import NodeFacts, gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

from unit.fakes.plugins.fake_root import FakeRoot, debian, kubelet

CONFIG = "/var/lib/kubelet/config.yaml"


def pem(content: bytes) -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_each_certificate_of_a_bundle_counts_whatever_stands_around_it() -> None:
    text = "subject=CN = kubernetes\n" + pem(b"old" * 100) + "\r\n" + pem(b"new" * 100).replace("\n", "\r\n") + pem(b"old" * 100)
    assert hashes(text) == tuple(sorted((sha(b"old" * 100), sha(b"new" * 100))))


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", pem(b"x" * 3).replace("eHh4", "eHh")])
def test_what_is_no_certificate_has_no_hash(text: str) -> None:
    assert hashes(text) == ()


def test_a_bundle_is_bounded() -> None:
    assert len(hashes("".join(pem(b"%d" % number) for number in range(100)))) == 8
    assert hashes(pem(b"x" * 20000)) == ()


def test_the_file_that_kubelet_names_goes_before_the_usual_one(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    root.file("/etc/kubernetes/pki/ca.crt", pem(b"usual"))
    assert authorities(Host(str(root)), None) == authorities(Host(str(root)), CONFIG) == (sha(b"usual"),)
    root.file(CONFIG, "authentication:\n  x509:\n    clientCAFile: /pki/own.crt\n")
    assert authorities(Host(str(root)), CONFIG) == (sha(b"usual"),)
    root.file("/pki/own.crt", pem(b"own"))
    assert authorities(Host(str(root)), CONFIG) == (sha(b"own"),)


@pytest.mark.parametrize("name", ["k3s", "rke2"])
def test_that_of_k3s_and_rke2_lies_in_their_folder(tmp_path: Path, name: str) -> None:
    root = FakeRoot(tmp_path)
    root.file(f"/var/lib/rancher/{name}/agent/client-ca.crt", pem(b"theirs"))
    assert authorities(Host(str(root)), CONFIG) == (sha(b"theirs"),)


def test_a_host_that_has_joined_nothing_has_none(tmp_path: Path) -> None:
    assert authorities(Host(str(FakeRoot(tmp_path))), CONFIG) == ()


def test_they_are_among_the_facts_that_preflight_gathers(tmp_path: Path) -> None:
    root = kubelet(debian(FakeRoot(tmp_path)))
    root.file("/etc/kubernetes/pki/ca.crt", pem(b"usual"))
    facts = gather(Host(str(root)), ["system"])
    assert facts.authorities == (sha(b"usual"),)
    assert NodeFacts.from_dict(facts.as_dict()) == facts
    assert gather(Host(str(root)), []).authorities is None
