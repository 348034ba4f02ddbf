# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Configurations as Debian's package and NVIDIA's nvidia-ctk really write them, and what the real containerds make of them and of ours.

The hosts are those of the unit tests: folders, with models of dockerd, of CRI-O and of systemd.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri, crio, docker, docker_config, unix_http
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import dump_section

from gpushare_lab import debian
from gpushare_lab.components import nvidia_toolkit
from gpushare_lab.prepare import the_cache
from unit.fakes.plugins.runtimes.containerd_host import Machine, others
from unit.fakes.plugins.runtimes.crio_host import CrioHost
from unit.fakes.plugins.runtimes.docker_host import KUBEADM, DockerHost
from unit.fakes.plugins.runtimes.fake_containerd import Containerd, of_the_lab, real

NOTHING = Converged()
PROGRAM = "/usr/bin/nvidia-container-runtime"


@pytest.fixture(scope="session")
def ctk() -> Callable[..., None]:
    """`nvidia-ctk runtime configure` with these options. Without a path for each file it writes to this machine's."""
    program = nvidia_toolkit(the_cache()) / "nvidia-ctk"

    def configure(runtime: str, config: Path, *options: str, drop_in: Path | None = None, program_path: str = PROGRAM) -> None:
        files = [f"--config={config}", f"--drop-in-config={drop_in or ''}"]
        asked = [f"--runtime={runtime}", *files, f"--nvidia-runtime-path={program_path}"]
        subprocess.run([program, "--quiet", "runtime", "configure", *asked, *options], check=True, capture_output=True, timeout=60)

    return configure


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FOLDER", str(tmp_path / "host/journal"))
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)


@pytest.mark.parametrize("before", ["", KUBEADM], ids=["no file", "kubeadm"])
def test_daemon_json_of_nvidia_ctk(ctk: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    host = DockerHost(tmp_path / "host", "20.10.24")
    monkeypatch.setattr(docker, "info", host.info)
    monkeypatch.setattr(docker_config, "_FOLDERS", (str(host.folder),))
    if before:
        host.write(before)
    # By its name alone, as nvidia-ctk has it by default.
    ctk("docker", host.config, program_path=host.program.name)
    host.start()
    registered = host.config.read_bytes()
    done = host.converge()
    assert (host.default(), done.files) == ("nvidia", [str(host.config)])
    assert host.config.read_bytes().startswith(registered.rstrip(b"\n} "))
    host.converge("absent", allowed=True)
    assert host.config.read_bytes() == registered

    ctk("docker", host.config, "--set-as-default", program_path=host.program.name)
    host.start()
    asked = host.config.read_bytes()
    assert host.converge() == NOTHING
    assert host.config.read_bytes() == asked


def test_the_drop_in_of_nvidia_ctk_for_crio(ctk: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = CrioHost(tmp_path / "host")
    monkeypatch.setattr(unix_http, "get", host.get)
    monkeypatch.setattr(cri, "status", host.status)
    monkeypatch.setattr(crio, "HOOKS", ())
    monkeypatch.setattr(crio, "TOOLKIT", str(host.folder / "toolkit.toml"))
    drop_in = host.drop_ins / "99-nvidia.toml"
    ctk("crio", host.config, "--set-as-default", drop_in=drop_in, program_path=str(host.program))
    assert drop_in.exists()
    host.start()
    assert host.converge() == NOTHING
    # Registered only, it is not the default yet: one file of ours says so.
    drop_in.unlink()
    ctk("crio", host.config, drop_in=drop_in, program_path=str(host.program))
    host.start()
    before = host.tree()
    assert host.converge().files == [str(host.drop_in)]
    assert host.default() == "nvidia"
    host.converge("absent")
    assert {path: text for path, text in host.tree().items() if path != "process"} == {p: t for p, t in before.items() if p != "process"}


@pytest.fixture(scope="session")
def containerds() -> list[str]:
    return of_the_lab()


@pytest.fixture(params=[0, 1, 2], ids=["1.6", "1.7", "2.4"])
def containerd(request: pytest.FixtureRequest, containerds: list[str]) -> Containerd:
    return real(containerds[request.param])


@pytest.fixture(params=["Debian's file", "config default"])
def written(request: pytest.FixtureRequest, containerd: Containerd, tmp_path: Path) -> Path:
    """The folder of containerd's configuration as a package, or the program itself, writes it."""
    folder = tmp_path / "containerd"
    (folder / "conf.d").mkdir(parents=True)
    text = (debian.root_file_system(the_cache()) / "etc/containerd/config.toml").read_text()
    assert "io.containerd.grpc.v1.cri" in text
    default = containerd(["config", "default"])[1].replace("/etc/containerd", str(folder))
    (folder / "config.toml").write_text(text if request.param == "Debian's file" else default)
    return folder


def configured_by(ctk: Callable[..., None], folder: Path, *options: str) -> None:
    ctk("containerd", folder / "config.toml", *options, drop_in=folder / "conf.d/99-nvidia.toml")
    main = folder / "config.toml"
    main.write_text(main.read_text().replace("/etc/containerd/conf.d", str(folder / "conf.d")))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [None, (), ("--set-as-default",)], ids=["nothing", "registered", "default"])
def test_containerds_own_word_on_ours_beside_what_others_have_written(
    ctk: Callable[..., None], containerd: Containerd, written: Path, options: tuple[str, ...] | None
) -> None:
    if options is not None:
        configured_by(ctk, written, *options)
    machine = Machine(containerd, written)
    original, before = machine.texts(), machine.installation.dump()
    runtimes = dump_section(before)["runtimes"]
    if dump_section(before)["default_runtime_name"] not in runtimes:
        # On 1.x nvidia-ctk takes the built-in runc away beside a file that does not name it, and no pod is started any more.
        assert (options, list(runtimes)) == ((), ["nvidia"])
        with pytest.raises(
            Rejected,
            match=r"found the runtimes nvidia and the default 'runc', .* nothing was changed: add its table as `containerd config default`",
        ):
            machine.present()
        assert machine.texts() == original
        return
    machine.present()
    section = machine.section()
    assert section["default_runtime_name"] == "nvidia"
    assert section["runtimes"]["nvidia"]["options"]["BinaryName"] == PROGRAM
    assert others(machine.installation.dump()) == others(before)
    again = machine.texts()
    assert machine.present().files == {}
    assert machine.texts() == again
    machine.absent()
    assert machine.texts() == original
