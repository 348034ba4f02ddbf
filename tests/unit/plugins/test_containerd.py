# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""containerd gets nvidia as its default runtime, and nothing else about it changes, whatever its configuration looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _containerd
from ansible_collections.gpushare.kubernetes.plugins.module_utils._containerd import Refused, dump_section, stripped
from ansible_collections.gpushare.kubernetes.plugins.module_utils._containerd_files import DROP_IN, Installation, Plan
from ansible_collections.gpushare.kubernetes.plugins.module_utils._files import digest, read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._journal import Entry
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.plugins.containerds import NEW, OLD, Containerd, model, real, real_programs

BINARY = "/usr/bin/nvidia-container-runtime"
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


def files_of(plan: Plan) -> list[str]:
    return [Path(path).name for path in plan.files]


class Machine:
    """One containerd with its files in a folder, and a journal of what we have done to them."""

    def __init__(self, containerd: Containerd, folder: Path) -> None:
        self.folder = folder
        self.containerd = containerd
        self.config = folder / "config.toml"
        self.installation = Installation(containerd, str(self.config))
        self.entries: dict[str, Entry] = {}

    def write(self, files: dict[str, str]) -> Machine:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        return self

    def texts(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def do(self, plan: Plan) -> None:
        for path, text in plan.files.items():
            before, after = read_state(path), None if text is None else text.encode()
            self.entries.setdefault(
                path, Entry(path, "container_runtime", before, (digest(before.content if before else None), digest(after)), False)
            )
            if after is None:
                Path(path).unlink()
            else:
                Path(path).parent.mkdir(exist_ok=True)
                Path(path).write_bytes(after)

    def present(self) -> Plan:
        plan = self.installation.present(BINARY)
        self.do(plan)
        return plan

    def absent(self) -> Plan:
        plan = self.installation.absent(list(self.entries.values()))
        self.do(plan)
        return plan

    def section(self) -> dict[str, Any]:
        return dump_section(self.installation.dump())


def others(dump: dict[str, Any]) -> Any:
    """All of a dump that is none of our business."""
    found = dict(dump, imports=None)
    containerd = dump_section(found)
    containerd.pop("default_runtime_name")
    runtimes = containerd.pop("runtimes")
    return found, {name: stripped(entry) for name, entry in runtimes.items() if name != "nvidia"}


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
        assert notes == [f"{machine.config} was changed by somebody else since: only our part is taken out"]
        assert machine.texts() == {"config.toml": b"# an administrator's\n" + text.encode()}


def test_a_missing_file_becomes_one_that_changes_nothing_else(containerd: Containerd, folder: Path) -> None:
    machine = Machine(containerd, folder)
    before = machine.installation.dump()
    machine.present()
    assert machine.section()["default_runtime_name"] == "nvidia"
    assert others(machine.installation.dump()) == others(before)
    machine.absent()
    assert machine.texts() == {}


def test_options_are_those_of_the_runtime_that_pods_have_now(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": CONFIGS["another default"](2)})
    machine.write({"config.toml": machine.config.read_text().replace("SystemdCgroup = true }", 'SystemdCgroup = true, Root = "/r" }')})
    machine.present()
    options = stripped(machine.section()["runtimes"]["nvidia"]["options"])
    assert options == {"BinaryName": BINARY, "SystemdCgroup": True, "Root": "/r"}


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


def test_a_default_that_pods_have_now_keeps_its_cgroup_driver_whatever_runc_says(folder: Path) -> None:
    ctk = CTK.format(version=2, cri=section(2)) + "            SystemdCgroup = true\n"
    runc = f'[{section(2)}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    assert Machine(model("1.7.24"), folder).write({"config.toml": ctk + runc}).present().files == {}
    assert Machine(model("1.7.24"), folder).write({"config.toml": ctk}).present().files == {}


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
        ("", r"has configuration version 1 \(it declares none\), expected 2, 3 or 4"),
        ("version = 1\n", "has configuration version 1, expected 2, 3 or 4"),
        ('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n', "take it out"),
        ("version = 2\nbroken\n", "config dump failed: containerd: failed to load TOML"),
        (kubeadm(2).replace("runc.v2", "kata.v2"), "would take its isolation"),
        ("version = 3\n", "has configuration version 3, expected 2, 3 or 4 and at most 2"),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_cure(folder: Path, text: str, message: str) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": text})
    with pytest.raises(Refused, match=message):
        machine.present()
    assert machine.texts() == {"config.toml": text.encode()}


def test_taking_it_out_is_refused_where_it_would_break_what_others_built_on_it(folder: Path) -> None:
    machine = Machine(model("1.7.24"), folder).write({"config.toml": kubeadm(2)})
    machine.present()
    # Somebody else's file makes ours the default as well; without our entry that name would lead nowhere.
    text = machine.config.read_text().replace("version = 2\n", f'version = 2\nimports = ["{folder}/theirs.toml"]\n')
    machine.write({"config.toml": text, "theirs.toml": f'version = 2\n[{section(2)}.containerd]\ndefault_runtime_name = "nvidia"\n'})
    with pytest.raises(Refused, match="the default runtime 'nvidia' would not exist"):
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
    shown = _containerd.masked(text)
    assert "geheim" not in shown
    assert '"(hidden)"' in shown
    assert shown.count("\n") == text.count("\n")


def test_what_is_no_secret_is_shown() -> None:
    text = 'passwords = "a"\n# auth\nauthor = "b"\n[auth]\nusername = "c"\n'
    assert _containerd.masked(text) == text


def test_a_refusal_tells_no_secret() -> None:
    secret = {"registry": {"configs": {"a": {"auth": {"password": "geheim"}}}}, "enable_selinux": True}
    dump = {"plugins": {OLD: {"containerd": {}, **secret}}}
    found = _containerd.differences(dump, {"plugins": {OLD: {"containerd": {}}}})
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
    assert _containerd.release(printed) == release


def test_another_program_is_not_taken_for_containerd() -> None:
    with pytest.raises(Refused, match=r"found one that calls itself 'k3s version v1.30.4\+k3s1"):
        _containerd.release("k3s version v1.30.4+k3s1 (98262b5d)\ngo version go1.22.5\n")


class TestRunningProcess:
    """What the CRI status of a process says, held against the files."""

    WANTED = _containerd.Runtimes("nvidia", {"nvidia": {"runtime_type": "t", "options": {"BinaryName": "/b", "SystemdCgroup": True}}})

    def status(self, **options: Any) -> _containerd.Runtimes:
        entry = {"runtimeType": "t", "options": {"BinaryName": "/b", "SystemdCgroup": True, "Root": "", **options}, "sandboxMode": "x"}
        return _containerd.running_runtimes({"containerd": {"defaultRuntimeName": "nvidia", "runtimes": {"nvidia": entry}}})

    def test_the_same(self) -> None:
        assert _containerd.not_running(self.WANTED, self.status()) is None

    def test_another_default(self) -> None:
        reason = _containerd.not_running(self.WANTED, self.status()._replace(default="runc"))
        assert reason == "its default runtime is 'runc', expected 'nvidia'"

    def test_another_cgroup_driver(self) -> None:
        assert "'SystemdCgroup': False" in str(_containerd.not_running(self.WANTED, self.status(SystemdCgroup=False)))

    def test_an_old_entry_that_is_still_there(self) -> None:
        without = _containerd.Runtimes("runc", {"runc": {"runtime_type": "t"}})
        running = _containerd.running_runtimes(
            {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"runtimeType": "t", "options": None}, "nvidia": {}}}}
        )
        assert "its runtime nvidia is" in str(_containerd.not_running(without, running))


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


@settings(deadline=None, max_examples=150)
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
