# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""CDI specs of a host, good ones and any others: which GPU a container gets through them, and why it gets none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.device_plugin.host.cdi_specs import MOST_BYTES, MOST_DEPTH, MOST_FILES, SpecError, SpecFolders, parse_spec
from gpushare_runtime.device_plugin.node.cdi import CdiDevice, CdiSpecs
from unit.fakes.runtime.pods import gpu
from unit.golden import Golden

KIND = "nvidia.com/gpu"
# As nvidia-ctk 1.17 writes it, with less of the same.
WRITTEN = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: GPU-00000000
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args:
      - nvidia-cdi-hook
      - chmod
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
  mounts:
  - hostPath: /usr/lib/libcuda.so.535.261.03
    containerPath: /usr/lib/libcuda.so.535.261.03
    options:
    - ro
"""


def spec(*devices: tuple[str, list[str]], mounts: Iterable[str] = (), **fields: Any) -> dict[str, Any]:
    """devices: name, paths of its device nodes."""
    listed = [{"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}} for name, paths in devices]
    edits = {"mounts": [{"hostPath": path, "containerPath": path} for path in mounts]}
    return {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": listed, "containerEdits": edits, **fields}


def test_what_nvidia_ctk_writes() -> None:
    devices = parse_spec(WRITTEN.encode()).devices
    assert {name: sorted(edits.minors) for name, edits in devices.items()} == {
        f"{KIND}=GPU-00000000": [0],
        f"{KIND}=0": [0],
        f"{KIND}=all": [0, 1],
    }
    assert devices[f"{KIND}=GPU-00000000"].paths == {
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/usr/bin/nvidia-cdi-hook",
        "/usr/lib/libcuda.so.535.261.03",
    }


def test_what_nvidia_ctk_wrote_for_an_h100() -> None:
    """Driver 580.159.04 in a folder of its own, 2026-11-26."""
    devices = parse_spec(Path(__file__).with_name("fixtures").joinpath("cdi_580_h100.spec").read_bytes()).devices
    names = ("GPU-00000001-0000-0000-0000-000000000000", "0", "all")
    assert {name: edits.minors for name, edits in devices.items()} == {f"{KIND}={name}": {0} for name in names}
    for edits in devices.values():
        assert {"/dev/nvidia0", "/dev/nvidia-uvm", "/usr/local/nvidia/lib64/libcuda.so.580.159.04"} < edits.paths


def test_the_host_path_of_a_device_node_counts() -> None:
    node = {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia5"}
    data = spec() | {"devices": [{"name": "GPU-1", "containerEdits": {"deviceNodes": [node]}}]}
    edits = parse_spec(json.dumps(data).encode()).devices[f"{KIND}=GPU-1"]
    assert (edits.minors, edits.paths) == ({5}, {"/run/nvidia/driver/dev/nvidia5"})


def test_other_kinds_are_not_read_any_further() -> None:
    assert parse_spec(b'{"cdiVersion":"0.6.0","kind":"vendor.com/net","devices":[3]}').devices == {}


# libyaml allows no more than 1000 from 0.2.6 on.
DEEP, DEEPEST = "[" * 900, "[" * 400_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be an object with cdiVersion, kind and devices, found None"),
        ("[]", "must be an object"),
        ("a: b: c", "neither JSON nor YAML"),
        ("{", "neither JSON nor YAML"),
        ("\t", "neither JSON nor YAML"),
        (DEEP, f"deeper than {MOST_DEPTH}"),
        ('{"a":' + DEEP, f"deeper than {MOST_DEPTH}"),
        (DEEPEST, "exceeded maximum nesting depth"),
        ("- " * 200_000, f"deeper than {MOST_DEPTH}"),
        ("- a\n" * 150_000, "more than 100000 entries"),
        ("a: &x [b]\nc: *x\n", "YAML alias *x; write out"),
        ("a: &x {b: c}\n<<: *x\n", "YAML alias *x; write out"),
        (" " * (MOST_BYTES + 1), f"more than {MOST_BYTES} bytes"),
        ("cdiVersion: 1\nkind: nvidia.com/gpu", "cdiVersion must be a version such as '0.6.0', found '1'"),
        ('{"cdiVersion": "0.6.0"}', "kind must be a text such as 'nvidia.com/gpu', found None"),
        ('{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": {}}', "devices must be a list"),
        ('{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [1]}', "devices must be a list"),
        (json.dumps(spec(("", []))), "devices[0].name must be a text"),
        (json.dumps(spec(("a", []), ("a", []))), "devices[1].name is 'a' a second time"),
        (json.dumps(spec(("a", ["dev/nvidia0"]))), "devices[0].containerEdits.deviceNodes[0].hostPath must be an absolute path"),
        (json.dumps(spec(("a", ["/dev/\0"]))), "must be an absolute path"),
        (json.dumps(spec(("a", [3]))), "must be an absolute path"),  # type: ignore[list-item]
        (json.dumps(spec() | {"containerEdits": 3}), "containerEdits must be an object, found 3"),
        (json.dumps(spec() | {"containerEdits": {"mounts": "x"}}), "containerEdits.mounts must be a list"),
        (json.dumps(spec() | {"devices": [{"name": "x", "containerEdits": {}}] * 5000}), "must be a list of at most 4096 objects"),
    ],
)
def test_no_specs(text: str, why: str) -> None:
    with pytest.raises(SpecError) as found:
        parse_spec(text.encode())
    assert why in str(found.value)
    assert len(str(found.value)) < 400


def test_a_spec_is_text() -> None:
    with pytest.raises(SpecError, match="not UTF-8"):
        parse_spec(b"\xff\xfe")


def reason(text: bytes) -> str:
    """Why it is no spec, "" if it is one."""
    try:
        parse_spec(text)
    except SpecError as error:
        return str(error) or "none was given" * 100
    return ""


@given(st.binary(max_size=300) | st.text(alphabet="{}[]&*!:-,\"'\n |>%?#<a0~", max_size=120).map(str.encode))
def test_any_bytes_are_a_spec_or_a_reason(text: bytes) -> None:
    assert len(reason(text)) < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "path", "hostPath", "hooks", "mounts"]), inner),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_devices_and_edits_are_a_spec_or_a_reason(devices: object, edits: object) -> None:
    data = spec() | {"devices": devices, "containerEdits": edits}
    assert len(reason(json.dumps(data).encode())) < 500


NAMES = st.text(alphabet="GPU-0123abc~.", min_size=1, max_size=12).filter(lambda name: name != "~")
PATHS = st.lists(st.sampled_from([f"/dev/nvidia{n}" for n in (0, 1, 17)] + ["/dev/nvidiactl", "/a b/nvidia3", "/lib/x"]), max_size=4)


@given(st.dictionaries(NAMES, PATHS, max_size=5), PATHS)
def test_yaml_and_json_mean_the_same(devices: dict[str, list[str]], mounts: list[str]) -> None:
    data = spec(*devices.items(), mounts=mounts)
    by_json = parse_spec(json.dumps(data).encode())
    assert parse_spec(yaml.safe_dump(data).encode()) == by_json
    assert {name: set(edits.paths) for name, edits in by_json.devices.items()} == {
        f"{KIND}={name}": {*paths, *mounts} for name, paths in devices.items()
    }


# Folders.

FIRST = gpu(0, 16, uuid="GPU-a", minor=4)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for folder in ("etc", "run", "dev"):
        (tmp_path / folder).mkdir()
    for node in ("nvidia4", "nvidia7"):
        (tmp_path / "dev" / node).touch()
    return tmp_path


def put(path: Path, data: object) -> None:
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def folders(host: Path) -> SpecFolders:
    return SpecFolders((f"{host}/etc", f"{host}/run"))


def problem(host: Path) -> str:
    return folders(host).read().problem(FIRST)


def test_a_gpu_that_no_spec_names(host: Path) -> None:
    put(host / "etc/broken.yaml", "a: b: c")
    put(host / "etc/ignored.yml", spec(("GPU-a", [f"{host}/dev/nvidia4"])))
    put(host / "run/other.json", spec(("GPU-a", [f"{host}/dev/nvidia4"]), kind="vendor.com/gpu"))
    why = problem(host)
    assert why.startswith(f"no CDI spec in {host}/etc or {host}/run names nvidia.com/gpu=GPU-a ({host}/etc/broken.yaml: it is neither")
    assert "nvidia-ctk cdi generate" in why
    assert "no CDI spec in /etc/cdi or /var/run/cdi names" in CdiSpecs().problem(FIRST)


def test_a_stale_spec_after_a_driver_upgrade(host: Path) -> None:
    gone = [f"{host}/libcuda.so.{n}" for n in range(5)]
    put(host / "run/nvidia.yaml", spec(("GPU-a", [f"{host}/dev/nvidia4"]), mounts=gone))
    why = problem(host)
    assert why.startswith(f"the CDI spec {host}/run/nvidia.yaml is stale, the host has no {gone[0]}, {gone[1]}, {gone[2]} and 2 more: run")


@pytest.mark.parametrize(
    ("files", "driver", "why"),
    [
        (["libcuda.so.535.261.03", "libnvidia-egl-gbm.so.1.1.2", "libnvidia-api.so.1"], "535.261.03", ""),
        (["libcuda.so.535.261.03"], "580.65.06", "its files are of driver 535.261.03 instead of 580.65.06: run"),
        (["libcuda.so.535.261.03", "libcuda.so.580.65"], "580.65", "its files are of driver 535.261.03 instead of 580.65: run"),
        (["libcuda.so.535.261.03"], "", "instead of the loaded one: run"),
        (["libcuda.so"], "580.65.06", ""),
    ],
)
def test_in_a_container_the_driver_s_version_in_names_shows_a_stale_spec(host: Path, files: list[str], driver: str, why: str) -> None:
    """The files of a host are nowhere to be looked up, good ones neither."""
    put(host / "run/nvidia.yaml", spec(("GPU-a", ["/nowhere/dev/nvidia4"]), mounts=[f"/nowhere/lib/{name}" for name in files]))
    found = SpecFolders((f"{host}/run",), in_container=True).read().problem(FIRST, driver)
    assert (why in found) if why else found == ""


@pytest.mark.parametrize(
    ("nodes", "has"), [(["nvidia7"], "/dev/nvidia7"), (["nvidia4", "nvidia7"], "/dev/nvidia4, /dev/nvidia7"), ([], "no device")]
)
def test_a_spec_that_gives_another_gpu_than_it_names(host: Path, nodes: list[str], has: str) -> None:
    put(host / "run/nvidia.yaml", spec(("GPU-a", [f"{host}/dev/{node}" for node in nodes])))
    assert f"is stale, it has {has}" in problem(host)
    assert "instead of /dev/nvidia4" in problem(host)


def test_a_mig_instance_has_device_nodes_of_its_own_beside_its_gpus(host: Path) -> None:
    (host / "dev/nvidia-caps").mkdir()
    for number in (66, 67, 75, 76):
        (host / f"dev/nvidia-caps/nvidia-cap{number}").touch()
    own = replace(FIRST, uuid="MIG-a", index=10070, caps=(66, 67))

    def problem(*caps: int) -> str:
        nodes = [f"{host}/dev/nvidia4", *(f"{host}/dev/nvidia-caps/nvidia-cap{number}" for number in caps)]
        put(host / "run/nvidia.yaml", spec(("MIG-a", nodes)))
        return folders(host).read().problem(own)

    assert problem(66, 67) == ""
    assert "is stale, of /dev/nvidia-caps it has nvidia-cap75, nvidia-cap76 for it instead of nvidia-cap66 and nvidia-cap67" in problem(
        75, 76
    )
    assert "it has nvidia-cap66, nvidia-cap67, nvidia-cap75 for it instead" in problem(66, 67, 75, 76)
    assert "it has none for it" in problem()
    assert "the host has no" in problem(66, 68)


def test_the_later_folder_counts(host: Path) -> None:
    put(host / "etc/nvidia.yaml", spec(("GPU-a", [f"{host}/dev/nvidia7"])))
    put(host / "run/nvidia.yaml", spec(("GPU-a", [f"{host}/dev/nvidia4"])))
    assert problem(host) == ""
    assert folders(host).read().devices[f"{KIND}=GPU-a"].file == f"{host}/run/nvidia.yaml"


def test_two_files_of_one_folder_that_name_it(host: Path) -> None:
    for name in ("a.yaml", "b.json"):
        put(host / "run" / name, spec(("GPU-a", [f"{host}/dev/nvidia4"])))
    assert problem(host) == (
        f"the CDI specs {host}/run/a.yaml and {host}/run/b.json both name it, so the container runtime uses neither: remove one"
    )


def test_no_file_holds_up_the_reading(host: Path) -> None:
    os.mkfifo(host / "run/a.yaml")
    (host / "run/b.yaml").mkdir()
    (host / "run/c.yaml").symlink_to("nowhere")
    put(host / "run/d.yaml", spec(("GPU-a", [f"{host}/dev/nvidia4"])))
    specs = folders(host).read()
    assert specs.problem(FIRST) == ""
    assert [text.rpartition(": ")[2] for text in specs.problems] == [
        "it is not a regular file",
        "Is a directory",
        "No such file or directory",
    ]


def test_more_files_than_any_host_has(host: Path) -> None:
    for number in range(MOST_FILES + 1):
        put(host / f"run/{number:03d}.json", spec((f"GPU-{number}", [])))
    specs = folders(host).read()
    assert (len(specs.devices), specs.problems) == (
        MOST_FILES,
        (f"{host}/run: it has {MOST_FILES + 1} specs, only the first {MOST_FILES} are read",),
    )


def test_folders_that_do_not_exist_have_nothing(tmp_path: Path) -> None:
    read = SpecFolders((f"{tmp_path}/none",)).read()
    assert (read.devices, read.problems) == ({}, ())


def test_a_file_is_parsed_again_only_when_it_changed(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    from gpushare_runtime.device_plugin.host import cdi_specs

    monkeypatch.setattr(cdi_specs, "parse_spec", lambda text: parsed.append(len(text)) or parse_spec(text))
    reader = folders(host)
    put(host / "run/nvidia.yaml", spec(("GPU-a", [f"{host}/dev/nvidia4"])))
    put(host / "run/broken.yaml", "a: b: c")
    first = reader.read()
    assert (reader.read(), len(parsed)) == (first, 2)
    # What it names is looked at each time.
    (host / "dev/nvidia4").unlink()
    assert f"the host has no {host}/dev/nvidia4" in reader.read().problem(FIRST)
    assert len(parsed) == 2
    put(host / "run/nvidia.yaml", spec(("GPU-b", [f"{host}/dev/nvidia7"])))
    assert set(reader.read().devices) == {f"{KIND}=GPU-b"}
    (host / "run/nvidia.yaml").unlink()
    assert reader.read().devices == {}


# Kinds of devices.

OWN = "gpushare.kubernetes/gpu"
SECOND = gpu(1, 16, uuid="GPU-b", minor=5)
MINE = "/run/cdi/gpushare.json"


def specs(kind: str, file: str, *gpus: str, own: bool = True, **fields: object) -> CdiSpecs:
    minors = {"GPU-a": 4, "GPU-b": 5}
    devices = {f"{kind}={name}": CdiDevice(file, frozenset({minors[name]})) for name in gpus}
    return CdiSpecs(("/run/cdi",), devices, own_file=MINE if own else "", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "before", "kind"),
    [
        (specs(KIND, "nvidia.yaml", "GPU-a", "GPU-b"), KIND, KIND),
        (specs(KIND, "nvidia.yaml", "GPU-a"), KIND, OWN),
        (specs(KIND, "nvidia.yaml"), KIND, OWN),
        # kubelet repeats the answers that pods have got.
        (specs(KIND, "nvidia.yaml", "GPU-a", "GPU-b"), OWN, OWN),
        (specs(KIND, "nvidia.yaml", own=False), KIND, KIND),
    ],
)
def test_the_kind_of_a_nodes_devices(found: CdiSpecs, before: str, kind: str) -> None:
    assert found.kind((FIRST, SECOND), "", before) == kind


def test_only_our_file_may_name_our_devices(golden: Golden) -> None:
    assert specs(OWN, MINE, "GPU-a").problem(FIRST, "", OWN) == ""
    golden(specs(OWN, "/run/cdi/x.yaml", "GPU-a", foreign=True).problem(FIRST, "", OWN))
    golden(specs(OWN, MINE, "GPU-a", foreign=True).problem(FIRST, "", OWN))
    assert specs(KIND, MINE, "GPU-a", foreign=True).problem(FIRST) == "", "NVIDIA's devices may stand in any file"
    why = specs(OWN, MINE, not_written="no space left").problem(FIRST, "", OWN)
    assert why.endswith(
        "names gpushare.kubernetes/gpu=GPU-a: the device plugin writes it again as soon as that is possible (no space left)"
    )


def test_the_names_of_one_kind_are_those_of_its_devices() -> None:
    found = CdiSpecs(devices={**specs(OWN, MINE, "GPU-b").devices, **specs(KIND, MINE, "GPU-a").devices})
    assert (found.names(OWN), found.names(KIND)) == ({"GPU-b"}, {"GPU-a"})


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (CdiDevice("f", frozenset({4}), ("/a", "/b", "/c")), "has no /a, /b, /c: run"),
        (CdiDevice("f", frozenset({4}), ("/a", "/b", "/c", "/d")), "has no /a, /b, /c and 1 more: run"),
        (CdiDevice("f", frozenset({4}), drivers=frozenset("1234")), "files are of driver 1, 2, 3 instead"),
        (CdiDevice("f", frozenset({1, 2, 3, 4})), "it has /dev/nvidia1, /dev/nvidia2, /dev/nvidia3 for it"),
        # What belongs to instances of a GPU makes nothing wrong for the whole.
        (CdiDevice("f", frozenset({4}), caps=frozenset({66})), ""),
    ],
)
def test_what_is_wrong_with_a_spec_names_three_at_most(device: CdiDevice, why: str) -> None:
    found = CdiSpecs(devices={f"{KIND}=GPU-a": device}).problem(FIRST)
    assert (why in found) if why else found == ""
