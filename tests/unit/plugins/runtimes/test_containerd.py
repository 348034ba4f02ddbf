# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""containerd gets nvidia as its default runtime, and nothing else about it changes, whatever its configuration looks like."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import containerd_config
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd import DROP_IN, Installation
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import dump_section
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_options import Decoder
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Asked, RuntimePlan, Runtimes, stripped
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.fakes.plugins.runtimes.containerd_host import ASKED, BINARY, Machine, others
from unit.fakes.plugins.runtimes.fake_containerd import NEW, OLD, Answer, Containerd, model, real, real_programs
from unit.golden import Golden

ONE, TWO = Decoder((1, 7)), Decoder((2, 0))
RELEASES = ("1.6.20", "1.7.24", "2.0.5", "2.1.4", "2.4.2")


@pytest.fixture(params=[*RELEASES, *real_programs()])
def containerd(request: pytest.FixtureRequest) -> Containerd:
    return real(request.param) if "/" in request.param else model(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "etc/containerd"
    path.mkdir(parents=True)
    return path


def versions(containerd: Containerd) -> list[int]:
    """The file versions that it reads and we edit."""
    return list(range(2, int(tomllib.loads(containerd(["config", "default"])[1])["version"]) + 1))


def section(version: int) -> str:
    return f'plugins."{OLD if version == 2 else NEW}"'


def kubeadm(version: int) -> str:
    """As Kubernetes' documentation has it."""
    cri = section(version)
    return f"""\
version = {version}

[{cri}]
  enable_selinux = true
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      SystemdCgroup = true # as kubelet
"""


def debian(version: int) -> str:
    return f'version = {version}\n\n[plugins]\n  [{section(version)}]\n    [{section(version)}.cni]\n      bin_dir = "/usr/lib/cni"\n'


def files_of(plan: RuntimePlan) -> list[str]:
    return [Path(path).name for path in plan.files]


def only_added(before: bytes, after: bytes) -> bool:
    """Whether every old line is still there, in order, but for those whose value we may change; with the same line ends."""
    changeable = ("default_runtime_name", "imports", "BinaryName")
    lines = iter(after.decode().splitlines())
    kept = [line for line in before.decode().splitlines() if not any(word in line for word in changeable)]
    bare_newlines = after.count(b"\n") - after.count(b"\r\n")
    return all(line in lines for line in kept) and (bare_newlines == 0 if b"\r" in before else b"\r" not in after)


CONFIGS = {
    "kubeadm": kubeadm,
    "debian": debian,
    "only a version": lambda version: f"version = {version}\n",
    "without a last newline": lambda version: kubeadm(version).rstrip("\n"),
    "with CRLF": lambda version: kubeadm(version).replace("\n", "\r\n"),
    "single quotes": lambda version: kubeadm(version).replace('"', "'"),
    "comments": lambda version: "# head\n" + kubeadm(version).replace("\n\n", "\n\n# about CRI\n\n") + "\n# [foot]\n",
    "inline": lambda version: (
        f'version = {version}\n{section(version)}.containerd.runtimes.runc = {{runtime_type = "io.containerd.runc.v2", '
        "options = {SystemdCgroup = true}}\n"
    ),
    "dotted": lambda version: (
        f"version = {version}\n[{section(version)}]\ncontainerd.default_runtime_name = 'runc'\n"
        "containerd.runtimes.runc.runtime_type = 'io.containerd.runc.v2'\n"
    ),
    "another default": lambda version: (
        kubeadm(version)
        + f'\n[{section(version)}.containerd]\n  default_runtime_name = "crun"\n\n'
        + f'[{section(version)}.containerd.runtimes.crun]\n  runtime_type = "io.containerd.runc.v2"\n'
        + '  options = { BinaryName = "/usr/bin/crun", SystemdCgroup = true }\n'
    ),
    "a nvidia runtime": lambda version: (
        kubeadm(version)
        + f"\n  [{section(version)}.containerd.runtimes.nvidia]\n    privileged_without_host_devices = true\n"
        + '    runtime_type = "io.containerd.runc.v2"\n'
        + f'    [{section(version)}.containerd.runtimes.nvidia.options]\n      BinaryName = "/opt/nvidia-container-runtime"\n'
    ),
}


@pytest.mark.parametrize("layout", CONFIGS)
def test_nothing_else_changes_and_taking_it_out_gives_the_old_bytes(containerd: Containerd, folder: Path, layout: str) -> None:
    for version in versions(containerd):
        for path in list(folder.rglob("*.toml")):
            path.unlink()
        machine = Machine(containerd, folder).write({"config.toml": CONFIGS[layout](version)})
        original, before = machine.texts(), machine.installation.dump()
        base = stripped(machine.section()["runtimes"][machine.section()["default_runtime_name"]])

        plan = machine.present()
        entry = stripped(machine.section()["runtimes"]["nvidia"])
        assert machine.section()["default_runtime_name"] == "nvidia"
        assert entry["runtime_type"] == base["runtime_type"]
        assert entry["options"] == {**base.get("options", {}), "BinaryName": BINARY}
        assert others(machine.installation.dump()) == others(before)
        assert files_of(plan) == (["config.toml"] if version == 2 else [DROP_IN, "config.toml"])
        assert only_added(original["config.toml"], machine.texts()["config.toml"])

        again = machine.texts()
        assert machine.present().files == {}
        assert machine.texts() == again

        assert machine.absent().notes == []
        assert machine.texts() == original


@pytest.mark.parametrize("layout", CONFIGS)
def test_what_others_write_later_stays_and_exactly_our_part_goes(containerd: Containerd, folder: Path, layout: str) -> None:
    for version in versions(containerd):
        for path in list(folder.rglob("*.toml")):
            path.unlink()
        text = CONFIGS[layout](version)
        machine = Machine(containerd, folder).write({"config.toml": text})
        machine.present()
        config = machine.config.read_bytes()
        machine.config.write_bytes(b"# an administrator's\n" + config)
        notes = machine.absent().notes
        assert notes == [f"{machine.config} was changed by others since: only our part is taken out"]
        assert machine.texts() == {"config.toml": b"# an administrator's\n" + text.encode()}


def test_a_missing_file_becomes_one_that_changes_nothing_else(containerd: Containerd, folder: Path) -> None:
    machine = Machine(containerd, folder)
    before = machine.installation.dump()
    machine.present()
    assert machine.section()["default_runtime_name"] == "nvidia"
    assert others(machine.installation.dump()) == others(before)
    machine.absent()
    assert machine.texts() == {}


CTK = """\
version = {version}

[plugins]

  [{cri}]

    [{cri}.containerd]
      default_runtime_name = "nvidia"

      [{cri}.containerd.runtimes]

        [{cri}.containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_type = "io.containerd.runc.v2"

          [{cri}.containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
"""


def test_a_drop_in_of_nvidia_ctk_is_enough_where_it_says_it_all(containerd: Containerd, folder: Path) -> None:
    for version in versions(containerd):
        imports = f'imports = ["{folder}/conf.d/*.toml"]\n'
        ctk = CTK.format(version=version, cri=section(version))
        # On 1.x such a file has to bring the whole section, with runc.
        runc = f'\n[{section(version)}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        machine = Machine(containerd, folder)
        machine.write({"config.toml": imports + f"version = {version}\n", "conf.d/99-nvidia.toml": ctk + runc})
        assert machine.present().files == {}


def test_a_drop_in_of_nvidia_ctk_without_the_cgroup_driver_is_corrected_where_it_decides(containerd: Containerd, folder: Path) -> None:
    for version in versions(containerd):
        for path in list(folder.rglob("*.toml")):
            path.unlink()
        # As nvidia-ctk writes it without --set-as-default.
        ctk = CTK.format(version=version, cri=section(version)).replace('default_runtime_name = "nvidia"', 'default_runtime_name = "runc"')
        runc = kubeadm(version).partition("\n")[2] if machine_is_old(containerd) else ""
        machine = Machine(containerd, folder)
        machine.write(
            {"config.toml": f'imports = ["{folder}/conf.d/*.toml"]\n' + kubeadm(version), "conf.d/99-nvidia.toml": ctk + squeezed(runc)}
        )
        before = machine.installation.dump()
        plan = machine.present()
        assert files_of(plan) == (["99-nvidia.toml"] if version == 2 else [DROP_IN])
        assert stripped(machine.section()["runtimes"]["nvidia"]["options"]) == {"BinaryName": BINARY, "SystemdCgroup": True}
        assert others(machine.installation.dump()) == others(before)
        machine.absent()
        assert machine.texts()["conf.d/99-nvidia.toml"] == (ctk + squeezed(runc)).encode()


def machine_is_old(containerd: Containerd) -> bool:
    return versions(containerd) == [2]


def squeezed(runc: str) -> str:
    """The runtime runc alone."""
    return runc[runc.index(".containerd.runtimes.runc]") - len(f"  [{section(2)}") :] if runc else ""


def test_a_folder_that_is_imported_already_is_used_and_the_main_file_stays(folder: Path) -> None:
    for pattern in (f"{folder}/config.d/*.toml", "config.d/*.toml"):
        text = f"version = 3\nimports = ['{pattern}']\n"
        machine = Machine(model("2.1.4"), folder).write({"config.toml": text, "config.d/10-registry.toml": "version = 3\n"})
        machine.present()
        assert sorted(machine.texts()) == ["config.d/10-registry.toml", f"config.d/{DROP_IN}", "config.toml"]
        assert machine.config.read_text() == text
        (folder / "config.d" / DROP_IN).unlink()


def test_files_that_are_not_imported_yet_do_not_come_to_life(containerd: Containerd, folder: Path) -> None:
    version = versions(containerd)[-1]
    stale = f"version = {version}\n[{section(version)}]\nenable_selinux = true\n"
    machine = Machine(containerd, folder).write({"config.toml": debian(version), "conf.d/old.toml": stale})
    assert files_of(machine.present()) == ["config.toml"]
    assert "imports" not in machine.config.read_text()


def test_a_main_file_that_was_rewritten_gets_its_import_again(folder: Path) -> None:
    machine = Machine(model("2.1.4"), folder).write({"config.toml": kubeadm(3)})
    machine.present()
    own = (folder / "conf.d" / DROP_IN).read_bytes()
    machine.write({"config.toml": kubeadm(3) + "[debug]\n"})
    assert files_of(machine.present()) == [DROP_IN, "config.toml"]
    assert (folder / "conf.d" / DROP_IN).read_bytes() == own
    assert machine.section()["default_runtime_name"] == "nvidia"


def test_no_scratch_file_is_left(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    machine = Machine(model("2.1.4"), folder).write({"config.toml": kubeadm(3)})
    machine.present()
    machine.absent()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1\n", "has configuration version 1, expected 2, which this containerd reads"),
        ('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n', "take it out"),
        ("version = 2\nbroken\n", "config dump failed: containerd: failed to load TOML"),
        (kubeadm(2).replace("runc.v2", "kata.v2"), "would take its isolation"),
    ],
)
def test_what_cannot_be_right_is_rejected_with_a_cure(folder: Path, text: str, message: str) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": text})
    with pytest.raises(Rejected, match=message):
        machine.present()
    assert machine.texts() == {"config.toml": text.encode()}


def test_taking_it_out_is_rejected_where_it_would_break_what_others_built_on_it(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": kubeadm(2)})
    machine.present()
    # Somebody else's file makes ours the default as well; without our entry that name would lead nowhere.
    text = machine.config.read_text().replace("version = 2\n", f'version = 2\nimports = ["{folder}/theirs.toml"]\n')
    machine.write({"config.toml": text, "theirs.toml": f'version = 2\n[{section(2)}.containerd]\ndefault_runtime_name = "nvidia"\n'})
    with pytest.raises(Rejected, match="the default runtime 'nvidia' would not exist"):
        machine.absent()


def test_a_runtime_that_an_administrator_added_on_1x_keeps_runc_beside_it(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": "version = 2\n"})
    machine.present()
    crun = f'\n[{section(2)}.containerd.runtimes.crun]\nruntime_type = "io.containerd.runc.v2"\n'
    machine.config.write_text(machine.config.read_text() + crun)
    machine.absent()
    assert sorted(machine.section()["runtimes"]) == ["crun", "runc"]
    assert machine.section()["default_runtime_name"] == "runc"


@pytest.mark.parametrize(
    "text",
    [
        '  password = "geheim\\"is"\r\n',
        "auth= 'geheim'\n",
        '[plugins.x.registry.configs]\n"a.b".auth.identitytoken = "geheim" # why\n',
        'configs = { a = { auth = { username = "u", password = "geheim" } } }\n',
        '[registry.headers]\nAuthorization = ["Basic geheim"]\n',
    ],
)
def test_secrets_are_masked_in_what_is_shown(text: str) -> None:
    shown = containerd_config.masked(text)
    assert "geheim" not in shown
    assert '"(hidden)"' in shown
    assert shown.count("\n") == text.count("\n")


def test_what_is_no_secret_is_shown() -> None:
    text = 'passwords = "a"\n# auth\nauthor = "b"\n[auth]\nusername = "c"\n'
    assert containerd_config.masked(text) == text


def test_a_rejection_tells_no_secret() -> None:
    secret = {"registry": {"configs": {"a": {"auth": {"password": "geheim"}}}}, "enable_selinux": True}
    dump = {"plugins": {OLD: {"containerd": {}, **secret}}}
    found = containerd_config.differences(dump, {"plugins": {OLD: {"containerd": {}}}}, ONE)
    assert found == [
        f"plugins.{OLD}.enable_selinux: expected True, found None",
        f"plugins.{OLD}.registry.configs.a.auth.password: expected another value than was found",
    ]


@pytest.mark.parametrize(
    ("printed", "release"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", (1, 6)),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", (2, 1)),
        ("containerd containerd.io 1.7.28 b98a3aace656320842a23f4a392a33f46af97866", (1, 7)),
    ],
)
def test_the_release_is_read_as_distributions_print_it(printed: str, release: tuple[int, int]) -> None:
    assert containerd_config.release(printed) == release


def test_another_program_is_not_taken_for_containerd(golden: Golden) -> None:
    with golden.raised(Rejected):
        containerd_config.release("k3s version v1.30.4+k3s1 (98262b5d)\ngo version go1.22.5\n")


def status_of(**options: Any) -> Runtimes:
    """What the CRI status of a process says whose nvidia runtime has these options, too."""
    entry = {"runtimeType": "t", "options": {"BinaryName": "/b", "SystemdCgroup": True, "Root": "", **options}, "sandboxMode": "x"}
    return containerd_config.running_runtimes({"containerd": {"defaultRuntimeName": "nvidia", "runtimes": {"nvidia": entry}}}, ONE)


def test_the_running_process_is_held_against_the_files(golden: Golden) -> None:
    wanted = Runtimes("nvidia", {"nvidia": {"runtime_type": "t", "options": {"BinaryName": "/b", "SystemdCgroup": True}}})
    assert containerd_config.not_running(wanted, status_of()) is None
    other_default = containerd_config.not_running(wanted, replace(status_of(), default="runc"))
    golden(other_default)
    assert "'SystemdCgroup': False" in str(containerd_config.not_running(wanted, status_of(SystemdCgroup=False)))
    # An old entry that is still there.
    running = containerd_config.running_runtimes(
        {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"runtimeType": "t", "options": None}, "nvidia": {}}}}, ONE
    )
    without = Runtimes("runc", {"runc": {"runtime_type": "t"}})
    golden(str(containerd_config.not_running(without, running)))


# The files that belong to a configuration, and the copy of them that a change is tried on.


def test_every_file_is_read_once_and_in_containerds_order(folder: Path) -> None:
    machine = Machine(model("2.1.4"), folder)
    machine.write(
        {
            "config.toml": f'imports = ["b.toml", 1, "{folder}/sub*/x*.toml", "../containerd/./conf.d//*.toml", "gone.toml"]\n',
            "b.toml": 'imports = ["config.toml", "c.toml"]\n',
            "c.toml": "",
            "conf.d/2.toml": "",
            "conf.d/1.toml": "",
            "conf.d/1.conf": "",
            "sub1/x.toml": "",
            "sub1/y.toml": "",
            "sub2/x2.toml": "",
            "other/x.toml": "",
        }
    )
    names = ["config.toml", "b.toml", "sub1/x.toml", "sub2/x2.toml", "conf.d/1.toml", "conf.d/2.toml", "c.toml"]
    assert list(machine.installation.read({})) == [str(folder / name) for name in names]
    # As if two files were gone, one were new, and one other.
    texts = {"c.toml": None, "conf.d/1.toml": None, "conf.d/0.toml": "n = 1", "conf.d/0.conf": "", "sub3/x.toml": "", "b.toml": ""}
    found = machine.installation.read({str(folder / name): text for name, text in texts.items()})
    names = ["config.toml", "b.toml", "sub1/x.toml", "sub2/x2.toml", "sub3/x.toml", "conf.d/0.toml", "conf.d/2.toml"]
    assert list(found) == [str(folder / name) for name in names]
    assert (found[str(folder / "conf.d/0.toml")], found[str(folder / "b.toml")]) == ("n = 1", "")


def test_a_change_is_tried_on_copies_whose_imports_lead_to_copies(folder: Path) -> None:
    seen: dict[str, str] = {}

    def spy(arguments: Sequence[str]) -> Answer:
        if arguments[0] == "--config" and arguments[1] != str(folder / "config.toml"):
            scratch = arguments[1].removesuffix(str(folder / "config.toml"))
            for path in Path(scratch).rglob("*.toml"):
                seen[str(path)[len(scratch) :]] = path.read_bytes().decode().replace(scratch, "(scratch)")
        return model("1.7.24")(arguments)

    imports = f'imports = ["{folder}//conf.d/../conf.d/*.toml", "own.toml"] # why\r\n'
    files = {"config.toml": imports + "version = 2\r\n", "own.toml": "version = 2\r\n", "conf.d/a.toml": "version = 2\n"}
    Machine(spy, folder).write(files).installation.present(ASKED)
    assert seen[str(folder / "config.toml")] == f'imports = ["(scratch){folder}/conf.d/*.toml", "own.toml"] # why\r\nversion = 2\r\n'
    assert seen[str(folder / "conf.d/a.toml")] == files["conf.d/a.toml"]
    assert seen[str(folder / "own.toml")].startswith(files["own.toml"] + f"\r\n[{section(2)}.containerd]\r\n")


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("{}/own.d/*.toml", "own.d"),
        ("own.d/zz-*", "own.d"),
        ("own.d/1*.toml", "conf.d"),
        ("own.*/*.toml", "conf.d"),
        ("own.d/zz-gpushare.toml", "conf.d"),
    ],
)
def test_our_own_file_goes_where_everything_is_imported_or_in_a_folder_of_its_own(folder: Path, pattern: str, place: str) -> None:
    (folder / "own.d").mkdir()
    if "*" not in pattern:
        (folder / pattern).write_text("version = 3\n")
    text = f'version = 3\nimports = ["{pattern.format(folder)}"]\n'
    plan = Machine(model("2.1.4"), folder).write({"config.toml": text}).present()
    cri = section(3)
    own = f"""\
# Made by gpushare.kubernetes: nvidia is the default runtime.
version = 3

[{cri}.containerd]
default_runtime_name = "nvidia"

[{cri}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
sandboxer = "podsandbox"

[{cri}.containerd.runtimes.nvidia.options]
BinaryName = "{BINARY}"
SystemdCgroup = false
"""
    assert plan.files[str(folder / place / DROP_IN)] == own
    wanted = text.replace('"]', f'", "{folder}/conf.d/*.toml"]')
    assert plan.files.get(str(folder / "config.toml"), text) == (text if place == "own.d" else wanted)
    assert (plan.after.default, plan.notes) == ("nvidia", [])


@pytest.mark.parametrize(
    ("imports", "files", "stays"), [("", [], False), (None, [], False), ("", ["a.toml"], True), ('["{}/conf.d/*.toml"]', [], True)]
)
def test_the_folder_that_we_made_goes_unless_somebody_uses_it(folder: Path, imports: str | None, files: list[str], stays: bool) -> None:
    machine = Machine(model("2.1.4"), folder)
    machine.installation.tidy()
    if imports is not None:
        machine.write({"config.toml": f"imports = {imports.format(folder)}\n" if imports else "version = 3\n"})
    (folder / "conf.d").mkdir()
    machine.write({f"conf.d/{name}": "" for name in files})
    machine.installation.tidy()
    assert (folder / "conf.d").exists() == stays


def test_a_file_that_has_lost_our_part_is_told(folder: Path) -> None:
    machine = Machine(model("2.1.4"), folder).write({"config.toml": kubeadm(3)})
    machine.present()
    (folder / "conf.d" / DROP_IN).unlink()
    machine.write({"config.toml": "# rewritten\n" + kubeadm(3)})
    assert machine.absent().notes == [f"{machine.config} was changed by others since: nothing of ours is left in it"]
    assert machine.texts() == {"config.toml": ("# rewritten\n" + kubeadm(3)).encode()}


def test_containerds_words_and_ours_name_the_file(folder: Path) -> None:
    def failing(arguments: Sequence[str]) -> Answer:
        return (1, " out \n", "") if arguments[0] == "--config" else model("2.1.4")(arguments)

    with pytest.raises(Rejected, match=f"^containerd --config {folder}/config.toml config migrate failed: out$"):
        Installation(failing, str(folder / "config.toml")).dump()
    # Ours first: it has the line of an imported file, too.
    (folder / "config.toml").write_text("version = 3\n[grpc\n")
    with pytest.raises(Rejected, match=f"^{folder}/config.toml cannot be read: line 2: expected ']'"):
        Installation(failing, str(folder / "config.toml")).dump()
    machine = Machine(model("1.7.24"), folder).write({"config.toml": "version = 2\nimports = ['a.toml', 'b.toml']\n"})
    machine.write({"a.toml": "version = 2\n"})
    (folder / "b.toml").write_bytes(b"\xff")
    with pytest.raises(Rejected, match=rf"^{folder}/b.toml is not UTF-8 \(.*\); nothing was changed: correct it, and run again$"):
        machine.installation.read({})
    with pytest.raises(Rejected, match=f"^{folder}/a.toml cannot be read: line 1: expected a key"):
        machine.installation.read({str(folder / "a.toml"): "[\n"})


def test_where_no_place_has_the_effect_alone_every_place_is_named(folder: Path) -> None:
    def odd(arguments: Sequence[str]) -> Answer:
        """Our runtime brings another change along, which no real containerd has been seen to do."""
        status, out, err = model("1.7.24")(arguments)
        return status, out.replace('"enable_selinux" = false', '"enable_selinux" = true') if BINARY in out else out, err

    machine = Machine(odd, folder).write({"config.toml": "version = 2\nimports = ['a.toml']\n", "a.toml": "version = 2\n"})
    with pytest.raises(Rejected) as error:
        machine.present()
    change = f"plugins.{OLD}.enable_selinux: expected False, found True"
    assert str(error.value) == (
        "nothing was changed, because no place was found where the change has its effect and no other: make it by hand, restart "
        f"containerd, see that pods run, and run again. in {folder}/a.toml: {change}; in {folder}/config.toml: {change}"
    )


# What the configuration must say.


def test_what_is_missing_is_said_in_full_where_there_is_no_entry_and_as_a_difference_where_there_is_one() -> None:
    v1, v2 = "io.containerd.runc.v1", "io.containerd.runc.v2"
    runc = {"runtime_type": v2, "options": {"SystemdCgroup": True, "Root": "/r", "BinaryName": "/runc"}, "x": {"y": 1}}
    present = {"runtime_type": v2, "options": {"BinaryName": "/b", "SystemdCgroup": True}, "own": 1}
    entry = ("containerd", "runtimes", "nvidia")
    default = (("containerd", "default_runtime_name"), "nvidia")
    in_full = [
        ((*entry, "runtime_type"), v2),
        ((*entry, "options", "BinaryName"), "/b"),
        ((*entry, "options", "Root"), "/r"),
        ((*entry, "options", "SystemdCgroup"), True),
        ((*entry, "x", "y"), 1),
    ]
    of_options = [((*entry, "options", "BinaryName"), "/b"), ((*entry, "options", "SystemdCgroup"), True)]
    of_type = [((*entry, "runtime_type"), v2)]
    crun = {"runtime_type": v1}
    for name, runtimes, wanted in [
        ("runc", {"runc": runc}, [default, *in_full]),
        ("gone", {"runc": runc}, [default, *in_full]),
        ("", {"runc": runc}, [default, *in_full]),
        ("nvidia", {"runc": runc}, in_full),
        ("crun", {"runc": runc, "crun": crun}, [default, (in_full[0][0], v1), in_full[1], (in_full[3][0], False)]),
        ("nvidia", {"runc": crun, "nvidia": present}, []),
        ("runc", {"runc": runc, "nvidia": present}, [default]),
        ("runc", {"runc": runc, "nvidia": {"own": 1}}, [default, *of_type, *of_options]),
        ("runc", {"runc": {**crun, "options": {}}, "nvidia": present}, [default, (of_type[0][0], v1), (of_options[1][0], False)]),
        ("nvidia", {"runc": runc, "nvidia": {**present, "runtime_type": "kata"}}, of_type),
    ]:
        section = {"default_runtime_name": name, "runtimes": runtimes}
        before = copy.deepcopy(section)
        assert containerd_config.needed(section, "/b", True, ONE) == wanted, (name, sorted(runtimes))
        assert section == before


@pytest.mark.parametrize(
    ("name", "runtimes", "words"),
    [
        ("kata", {"kata": {"runtime_type": "kata"}, "runc": {"runtime_type": "io.containerd.runc.v2"}}, "^the default runtime is kata"),
        (
            "x",
            {"b": {"runtime_type": "b"}, "a": {}},
            "^found the runtimes a, b and the default 'x', expected one of type io.containerd.runc",
        ),
        ("", None, "^found the runtimes none and the default ''"),
    ],
)
def test_a_default_that_runc_does_not_run_is_rejected(name: str, runtimes: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        containerd_config.needed({"default_runtime_name": name, "runtimes": runtimes}, BINARY, True, ONE)


def with_table(options: str = "") -> str:
    """As containerd's documentation of before 1.3 has it."""
    return f"""\
version = 2
[{section(2)}.containerd]
  [{section(2)}.containerd.default_runtime]
    runtime_type = "io.containerd.runc.v2"
    [{section(2)}.containerd.default_runtime.options]
      SystemdCgroup = true
{options}"""


def test_the_deprecated_table_of_the_default_runtime_is_rejected_with_its_file_before_anything_is_changed(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": with_table()})
    with pytest.raises(Rejected) as error:
        machine.present()
    assert str(error.value) == (
        f"found the table default_runtime in {folder}/config.toml, which wins over default_runtime_name and is deprecated; expected "
        "default_runtime_name alone. Nothing was changed: make it the entry runtimes.runc, with its options, set default_runtime_name = "
        '"runc" beside it, restart containerd, see that pods run, and run again'
    )
    # The cure, as the message has it.
    cured = (
        with_table().replace("default_runtime", "runtimes.runc").replace("containerd]\n", 'containerd]\n  default_runtime_name = "runc"\n')
    )
    machine.write({"config.toml": cured}).present()
    assert machine.section()["runtimes"]["nvidia"]["options"] == {"BinaryName": BINARY, "SystemdCgroup": True}


def test_where_no_runtime_is_needed_the_table_is_what_runs(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": with_table()})
    plan = machine.present(CDI_ONLY)
    assert (plan.after.default, plan.after.entries["default"]["options"]) == ("default", {"SystemdCgroup": True})


def test_a_dump_without_a_cri_plugin_is_rejected(golden: Golden) -> None:
    with golden.raised(Rejected):
        dump_section({"disabled_plugins": ["cri"], "plugins": {OLD: {"containerd": 1}, NEW: {}}})
    assert dump_section({"plugins": {OLD: {"containerd": {"a": 1}}, NEW: {"containerd": {"b": 1}}}}) == {"b": 1}
    for name in ("cri", OLD, NEW):
        with golden.raised(Rejected):
            containerd_config.check_enabled({"disabled_plugins": ["other", name]})
    containerd_config.check_enabled({"disabled_plugins": ["io.containerd.snapshotter.v1.zfs"]})
    containerd_config.check_enabled({"disabled_plugins": None})


@pytest.mark.parametrize(
    ("data", "newest", "found"),
    [
        ({"version": 2}, 2, 2),
        ({"version": 4}, 4, 4),
        ({"version": 3}, 2, "version 3, expected 2, which .* `containerd config dump`"),
        ({"version": 5}, 9, "version 5, expected one from 2 to 4, which .* `containerd config migrate`"),
        ({"plugins": {"cri": {}}}, 3, r"version 1 \(it declares none\), expected one from 2 to 3, which .* `containerd config migrate`"),
        ({"disabled_plugins": ["cri"]}, 2, r"version 1 \(it declares none\), expected 2, which .*: .* `containerd config dump`"),
        ({}, 3, 3),
        ({"root": "/x", "disabled_plugins": [], "plugins": {}}, 2, 2),
    ],
)
def test_the_version_of_a_file_decides(data: dict[str, Any], newest: int, found: int | str) -> None:
    if isinstance(found, int):
        assert containerd_config.file_version("/c", data, newest) == found
    else:
        with pytest.raises(Rejected, match=f"^/c has configuration {found}"):
            containerd_config.file_version("/c", data, newest)


def test_the_socket_is_the_one_of_the_configuration() -> None:
    new = {"plugins": {"io.containerd.server.v1.grpc": {"address": "/new"}}}
    old = {"grpc": {"address": "/old"}}
    found = [containerd_config.socket_address(one) for one in ({**new, **old}, {"plugins": {}, **old}, {})]
    assert found == ["/new", "/old", "/run/containerd/containerd.sock"]


def dump_of(containerd: Any, **more: Any) -> dict[str, Any]:
    return {"plugins": {NEW: {"containerd": containerd}}, **more}


def test_two_dumps_differ_where_what_they_mean_differs() -> None:
    runtimes = {"runc": {"runtime_type": "t", "zero": 0, "options": {"off": False}}}
    same = dump_of({"runtimes": {"runc": {"runtime_type": "t"}}}, imports=["a"], empty={})
    assert containerd_config.differences(dump_of({"runtimes": runtimes}), same, ONE) == []
    assert containerd_config.differences(dump_of({"runtimes": None}), dump_of({}), ONE) == []
    wanted = dump_of({"a": 1, "b": True, "c": {"d": 1}, "e": []}, top={"x": 1})
    found = dump_of({"a": 2, "b": 1, "c": "d", "e": [1]}, more="y")
    path = f"plugins.{NEW}.containerd"
    assert containerd_config.differences(wanted, found, ONE) == [
        "more: expected None, found 'y'",
        f"{path}.a: expected 1, found 2",
        f"{path}.b: expected True, found 1",
        f"{path}.c.: expected None, found 'd'",
        f"{path}.c.d: expected 1, found None",
        f"{path}.e: expected [], found [1]",
        "top.x: expected 1, found None",
    ]


@pytest.mark.parametrize(
    ("count", "words"), [(1, "0"), (5, "0; 1; 2; 3; 4"), (6, "0; 1; 2; 3; 4; and 1 more"), (9, "0; 1; 2; 3; 4; and 4 more")]
)
def test_no_more_than_five_differences_are_told(count: int, words: str) -> None:
    assert containerd_config.describe([str(number) for number in range(count)]) == words


def test_a_runtime_that_a_file_would_hide_is_spelled_out() -> None:
    before = {"runtimes": {"b": {"runtime_type": "io.containerd.runc.v2", "zero": 0}, "a": {"runtime_type": "wasm"}, "kept": {}}}
    assert containerd_config.lost(before, {"runtimes": {"kept": {"x": 1}}}, ONE) == [
        (("containerd", "runtimes", "a", "runtime_type"), "wasm"),
        (("containerd", "runtimes", "b", "runtime_type"), "io.containerd.runc.v2"),
        (("containerd", "runtimes", "b", "options", "SystemdCgroup"), False),
    ]
    entry = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    assert containerd_config.spelled_out(entry, ONE) == entry


def test_what_taking_our_part_out_may_change_is_the_default_and_our_runtime() -> None:
    before = dump_of({"default_runtime_name": "nvidia", "runtimes": {"nvidia": {"a": 1}, "runc": {}}, "x": 1})
    for runtimes in ({"runc": {"changed": 1}}, {"nvidia": {"theirs": 1}}, None):
        found = containerd_config.undone(before, dump_of({"default_runtime_name": "runc", "runtimes": runtimes, "x": 2}))
        wanted = {"runc": {}, **{name: one for name, one in (runtimes or {}).items() if name == "nvidia"}}
        assert found == dump_of({"default_runtime_name": "runc", "runtimes": wanted, "x": 1})
    assert dump_section(before)["default_runtime_name"] == "nvidia"


CDI_ONLY = Asked(None, cdi=True)


def with_cdi(value: str) -> str:
    return kubeadm(2).replace("  enable_selinux = true\n", f"  enable_selinux = true\n  enable_cdi = {value} # by hand\n")


def test_cdi_is_switched_on_and_nothing_else_changes(folder: Path) -> None:
    for text in (kubeadm(2), with_cdi("false"), debian(2), ""):
        for path in folder.rglob("*.toml"):
            path.unlink()
        machine = Machine(model("1.7.24"), folder)
        if text:
            machine.write({"config.toml": text})
        before = machine.installation.dump()
        plan = machine.present(CDI_ONLY)
        assert (files_of(plan), plan.after.cdi) == (["config.toml"], True)
        found = machine.installation.dump()
        assert found["plugins"][OLD].pop("enable_cdi") is True
        assert before["plugins"][OLD].pop("enable_cdi") is False
        assert containerd_config.differences(before, found, ONE) == []
        assert machine.present(CDI_ONLY).files == {}
        plan = machine.absent()
        assert plan.after.cdi is False
        assert machine.texts() == ({"config.toml": text.encode()} if text else {})


def test_cdi_is_switched_on_beside_the_runtime_and_off_again_in_a_file_that_others_have_changed(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": kubeadm(2)})
    machine.present(Asked(BINARY, cdi=True))
    assert machine.section()["default_runtime_name"] == "nvidia"
    machine.config.write_text(machine.config.read_text() + '[debug]\n  level = "info"\n')
    machine.absent()
    assert machine.config.read_text() == kubeadm(2) + '[debug]\n  level = "info"\n'


def test_cdi_that_others_have_switched_on_stays_on(folder: Path) -> None:
    text = with_cdi("true")
    machine = Machine(model("1.7.24"), folder).write({"config.toml": text})
    assert machine.present(CDI_ONLY).files == {}
    machine.present()
    machine.config.write_text(machine.config.read_text() + "[debug]\n")
    plan = machine.absent()
    assert plan.after.cdi is None
    assert machine.config.read_text() == text + "[debug]\n"


BUILTIN = {"runc": {"runtime_type": "io.containerd.runc.v2", "zero": 0, "options": {"SystemdCgroup": False}}}
OURS = f"""\
[{section(2)}.containerd]
default_runtime_name = "nvidia"
[{section(2)}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[{section(2)}.containerd.runtimes.nvidia.options]
BinaryName = "/b"
[{section(2)}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
THEIRS = f'[{section(2)}.containerd]\ndefault_runtime_name = "theirs"\n'
RUNC = f'[{section(2)}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
NVIDIA = f'[{section(2)}.containerd.runtimes.nvidia]\nruntime_type = "old"\n'


@pytest.mark.parametrize(
    ("text", "original", "reverted"),
    [
        ("version = 2\n" + OURS, "", None),
        (OURS, "", None),
        ("version = 2\nimports = ['/p']\n" + OURS, "", None),
        ("version = 2\nroot = '/'\n" + OURS, "", "version = 2\nroot = '/'\n"),
        ("version = 2\n" + OURS, "version = 2\n", "version = 2\n"),
        ("version = 2\n" + OURS + "# end\n", "version = 2\n" + RUNC, "version = 2\n" + RUNC + "# end\n"),
        # The default is put back; one that somebody has chosen since stays.
        (OURS + "# end\n", THEIRS, THEIRS + "# end\n"),
        (OURS.replace('"nvidia"', '"runc"'), THEIRS, THEIRS.replace("theirs", "runc")),
        # A runtime that somebody has changed since is not the built-in one any more.
        (OURS + "own = 1\n", "version = 2\n", RUNC + "own = 1\n"),
        # Our values in an entry that was there go back one by one; what else is in it stays.
        (NVIDIA.replace("old", "new") + "own = 1\noptions = { SystemdCgroup = true }\n", NVIDIA, NVIDIA + "own = 1\noptions = {  }\n"),
        (NVIDIA.replace('runtime_type = "old"', "own = 1"), NVIDIA, NVIDIA.replace("runtime_type", "own = 1\nruntime_type")),
        # Imports: ours goes, and the list with it if it was not there.
        ("imports = ['/x', '/p']\n", "imports = ['/x']\n", "imports = ['/x']\n"),
        ("imports = ['/p']\n", "imports = []\n", "imports = []\n"),
        ("imports = ['/p']\n", "imports = ['/p']\n", "imports = ['/p']\n"),
        ("imports = ['/p']\n", "a = 1\n", ""),
        ("imports = ['/p', '/x']\n", "a = 1\n", "imports = ['/x']\n"),
        # The version of a file that had none, unless somebody has come to rely on it.
        ("root = '/'\nversion = 2\n" + OURS, "root = '/'\n", "root = '/'\n"),
        ("version = 2\n" + OURS + "own = 1\n", "root = '/'\n", "version = 2\n" + RUNC + "own = 1\n"),
    ],
)
def test_exactly_our_part_is_taken_out_of_a_file(text: str, original: str, reverted: str | None) -> None:
    assert containerd_config.reverted(text, original, BUILTIN, ["/p"]) == reverted


@st.composite
def configurations(draw: st.DrawFn, version: int) -> str:
    """A configuration as many tools and hands write it."""
    cri, newline = section(version), draw(st.sampled_from(["\n", "\r\n"]))
    lines = [f"version = {version}"]
    lines.insert(draw(st.integers(0, 1)), draw(st.sampled_from(["# a comment", 'root = "/var/lib/containerd"', ""])))
    blocks = [
        [f"[{cri}]", f"enable_selinux = {draw(st.sampled_from(['true', 'false']))}"],
        [f"[{cri}.containerd]", draw(st.sampled_from(["", 'default_runtime_name = "runc"', 'snapshotter = "native" # why']))],
        [f"[{cri}.containerd.runtimes.runc]", 'runtime_type = "io.containerd.runc.v2"'],
        [f"[{cri}.containerd.runtimes.runc.options]", f"SystemdCgroup = {draw(st.sampled_from(['true', 'false']))}"],
        ["[plugins.'io.containerd.internal.v1.opt']", "path = '/opt'"],
    ]
    chosen = draw(st.permutations([block for block in blocks if draw(st.booleans())]))
    # Options without a type are no runtime.
    if any("runc.options" in block[0] for block in chosen) and not any("runc]" in block[0] for block in chosen):
        chosen = [*chosen, blocks[2]]
    indent, gap = draw(st.sampled_from(["", "  ", "\t"])), draw(st.booleans())
    for block in chosen:
        lines += [""] * gap + [block[0]] + [indent + line if line else "" for line in block[1:]]
    return newline.join(lines) + draw(st.sampled_from(["", newline]))


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(RELEASES))
def test_properties_of_any_configuration(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, release: str) -> None:
    containerd = model(release)
    version = data.draw(st.sampled_from(versions(containerd)))
    text = data.draw(configurations(version))
    machine = Machine(containerd, tmp_path_factory.mktemp("containerd")).write({"config.toml": text})
    before = machine.installation.dump()
    base = stripped(machine.section()["runtimes"]["runc"])
    machine.present()
    assert stripped(machine.section()["runtimes"]["nvidia"]) == {**base, "options": {**base.get("options", {}), "BinaryName": BINARY}}
    assert others(machine.installation.dump()) == others(before)
    assert machine.present().files == {}
    # Behind a file without a last newline, what is appended goes on in the last line, which may be ours.
    later = data.draw(st.sampled_from(["", "# later\n", "\n[debug]\nlevel = 'info'\n"] if text.endswith("\n") else [""]))
    machine.config.write_bytes(machine.config.read_bytes() + later.encode())
    machine.absent()
    assert machine.texts() == {"config.toml": (text + later).encode()}
