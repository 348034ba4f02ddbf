# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which images a runtime has, by its CRI; and the program that imports one."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.images import ImagesError, importer, lacking, listed, unlisted

from unit.golden import Golden

SOCKET = "unix:///run/containerd/containerd.sock"


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def image(identity: bytes, *references: bytes) -> bytes:
    return field(1, field(1, identity) + b"".join(field(2, one) for one in references) + field(3, b"a@sha256:00") + bytes([4 << 3, 7]))


def test_images_by_reference() -> None:
    asked = []

    def call(address: str, method: str, request: bytes, seconds: float) -> bytes:
        asked.append((address, method, request))
        return image(b"sha256:aa", b"localhost/a:1", b"localhost/b:1") + image(b"cc", b"localhost/c:1") + image(b"sha256:dd")

    has = listed(SOCKET, call)
    assert asked == [("/run/containerd/containerd.sock", "/runtime.v1.ImageService/ListImages", b"")]
    # CRI-O says the id without the name of its hash.
    assert has == {"localhost/a:1": {"sha256:aa"}, "localhost/b:1": {"sha256:aa"}, "localhost/c:1": {"sha256:cc"}}
    wanted = [
        {"references": ["localhost/a:1"], "id": "sha256:aa"},
        {"references": ["localhost/c:1"], "id": "sha256:other"},
        {"references": ["localhost/a:1", "localhost/new:1"], "id": "sha256:aa"},
    ]
    assert lacking(wanted, has) == wanted[1:]


@pytest.mark.parametrize(("listed_after", "left"), [(0.0, 0), (29.0, 0), (31.0, 1)])
def test_an_image_that_the_runtime_lists_some_time_after_its_import(listed_after: float, left: int) -> None:
    wanted = [{"references": ["localhost/a:1"], "id": "sha256:aa"}]
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    found = unlisted(wanted, lambda: {"localhost/a:1": {"sha256:aa"}} if now[0] >= listed_after else {}, sleep, lambda: now[0])
    assert (len(found), now[0]) == (left, min(listed_after, 30.0))


@pytest.mark.parametrize("answer", [b"\xff" * 20, b"\x0a\x02\x0f\x00", OSError("refused")])
def test_an_answer_that_is_none(answer: bytes | OSError, golden: Golden) -> None:
    def call(*_arguments: object) -> bytes:
        if isinstance(answer, OSError):
            raise answer
        return answer

    with golden.raised(ImagesError):
        listed(SOCKET, call)


@pytest.mark.parametrize(
    ("runtime", "endpoint", "programs", "command"),
    [
        ("containerd", SOCKET, ["ctr"], "/bin/ctr --address /run/containerd/containerd.sock --namespace k8s.io images import"),
        (
            "containerd",
            "/run/k3s/containerd/containerd.sock",
            ["k3s"],
            "/bin/k3s ctr --address /run/k3s/containerd/containerd.sock --namespace k8s.io images import",
        ),
        ("docker", "unix:///run/cri-dockerd.sock", ["docker"], "/bin/docker load --input"),
        ("cri-o", "unix:///run/crio/crio.sock", ["podman"], "/bin/podman load --input"),
    ],
)
def test_the_program_that_imports(runtime: str, endpoint: str, programs: list[str], command: str, golden: Golden) -> None:
    assert " ".join(importer(runtime, endpoint, lambda name: f"/bin/{name}" if name in programs else None)) == command
    with golden.raised(ImagesError):
        importer(runtime, endpoint, lambda _name: None)


def test_a_runtime_that_is_not_known() -> None:
    with pytest.raises(ImagesError, match="not known"):
        importer(None, SOCKET, lambda name: f"/bin/{name}")
