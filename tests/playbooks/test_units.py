# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The daemons' units as Ansible makes them from the variables: the daemons themselves read their command lines."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.files import DaemonFiles, InstalledDaemon
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import Companions, Daemon, Health, apart, sockets
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.virtual_environment import Environments, Interpreter

from gpushare_runtime.dashboard import main as dashboard
from gpushare_runtime.dashboard.access import TokenFile
from gpushare_runtime.device_plugin import options as plugin
from gpushare_runtime.extender import options as extender
from gpushare_runtime.extender.tls import TlsFiles
from gpushare_runtime.kube.service_account import TokenFiles
from gpushare_runtime.pki import main as pki
from unit.fakes.plugins.daemon.fake_systemd import Systemd

ROOT = Path(__file__).resolve().parents[2]
# Without them a daemon has systemd's 1024 files, all the host's memory, and goes like any other where that ends.
LIMITS = ("LimitNOFILE", "MemoryMax", "OOMScoreAdjust")
# Host to its variables.
HOSTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "open": {
        "gpushare_metrics_address": "10.0.0.5",
        "gpushare_metrics_token": "0123456789abcdef",
        "gpushare_metrics_plugin_port": "9500",
        "gpushare_memory_unit": "64MiB",
        "gpushare_isolation": "driver",
        "gpushare_limit_running_pods": True,
        "gpushare_overuse": "evict",
        "gpushare_overuse_grace": 300,
        "gpushare_unstartable": "evict",
        "gpushare_placement": "spread",
        "gpushare_gpu_placement": "binpack",
        "gpushare_most_nodes": "100",
        "gpushare_extender_memory": "3G",
        "gpushare_preemption": "no",
        "gpushare_scheduler_lease": "infra/mine",
        "gpushare_dashboard_address": "0.0.0.0",
        "gpushare_dashboard_port": "9500",
        "gpushare_dashboard_host_names": ["gpus.example.org", "gpus"],
        "gpushare_dashboard_prometheus": "http://prometheus:9090/x/",
        "gpushare_dashboard_title": "gpus-1",
    },
    "certificate": {
        "gpushare_dashboard_address": "::1",
        "gpushare_dashboard_tls_cert": "/etc/ssl/a.crt",
        "gpushare_dashboard_tls_key": "/etc/ssl/a.key",
    },
    "proxy": {"gpushare_dashboard_tls": False, "gpushare_dashboard_host_names": ["gpus.example.org"]},
    "limits": {"driver": "615.71.09"},
    "without": {"driver": "615.71.09", "gpushare_isolation": "none"},
    "six": {"gpushare_metrics_address": "::1", "gpushare_metrics_extender_port": 9501, "gpushare_extender_tls": False},
    "metrics": {"gpushare_metrics_address": "::1", "gpushare_preemption": False},
    "next": {"__python_environment": {"environment": "/opt/gpushare/0.2.0-bbbbbbbbbbbb"}},
    "half": {"gpushare_metrics_address": "127.0.0.1", "gpushare_metrics_extender_port": 0, "gpushare_metrics_token": "0123456789abcdef"},
}
PLAY = """
- hosts: all
  gather_facts: false
  vars_files:
    - {roles}/extender/defaults/main.yml
    - {roles}/extender/vars/main.yml
    - {roles}/device_plugin/defaults/main.yml
    - {roles}/device_plugin/vars/main.yml
    - {roles}/dashboard/defaults/main.yml
    - {roles}/dashboard/vars/main.yml
  vars:
    __python_environment: {{environment: /opt/gpushare/0.1.0-aaaaaaaaaaaa}}
    __gpushare_node: {{node_name: gpu1, kubelet_root: /data/kubelet}}
    __device_plugin_found: {{strategy: envvar, driver: "{{{{ driver | default('614.99') }}}}"}}
  tasks:
    - ansible.builtin.copy:
        content: "{{{{ lookup('ansible.builtin.template', '{roles}/' ~ item ~ '.service.j2') }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.{{{{ item | basename }}}}"
        mode: "0600"
      loop:
        - extender/templates/gpushare-extender
        - extender/templates/gpushare-pki
        - device_plugin/templates/gpushare-device-plugin
        - dashboard/templates/gpushare-dashboard
        - dashboard/templates/gpushare-dashboard-pki
    - ansible.builtin.copy:
        content: "{{{{ lookup('gpushare.kubernetes.settings', 'device_plugin', decided=__device_plugin_decided) | to_json }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.gpushare-device-plugin.json"
        mode: "0600"
    - ansible.builtin.copy:
        content: "{{{{ lookup('gpushare.kubernetes.settings', 'dashboard', decided=__dashboard_decided) | to_json }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.gpushare-dashboard.json"
        mode: "0600"
    - ansible.builtin.copy:
        content: "{{{{ lookup('gpushare.kubernetes.settings', 'extender', decided=__extender_decided) | to_json }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.gpushare-extender.json"
        mode: "0600"
"""


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each host's units."""
    folder = tmp_path_factory.mktemp("units")
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "hosts.json").write_text(json.dumps({"all": {"vars": local, "hosts": {name: {} for name in HOSTS}}}))
    for name, values in HOSTS.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    # Over the roles' defaults, which a play's files would otherwise win against.
    play = PLAY.format(roles=ROOT / "roles", folder=folder).replace(
        "  vars:\n", f"    - {folder}/{{{{ inventory_hostname }}}}.json\n  vars:\n", 1
    )
    (folder / "play.yml").write_text(play)
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", folder / "hosts.json", folder / "play.yml"],
        env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def unit(units: Path, host: str, name: str) -> str:
    return (units / f"{host}.gpushare-{name}").read_text()


def arguments(units: Path, host: str, name: str) -> list[str]:
    """What systemd starts it with. A file of settings is here as the module writes it."""
    text = unit(units, host, name).replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(line.partition("=")[2])[1:]
    if words[:1] != ["--config"]:
        return words
    assert words[1:] == [f"/etc/gpushare/gpushare-{name}.yaml"]
    file = units / f"{host}.gpushare-{name}.yaml"
    file.write_text(files(units, host, name).config_text or "")
    return ["--config", str(file)]


def files(units: Path, host: str, name: str) -> DaemonFiles:
    """The files of a daemon with settings in a file, as the role passes them on."""
    config = json.loads((units / f"{host}.gpushare-{name}.json").read_text())
    return DaemonFiles(f"gpushare-{name}", unit(units, host, name), "/etc/gpushare/kubeconfig", config=config)


@pytest.mark.parametrize(
    ("name", "before", "lines"),
    [
        ("device-plugin", "+/bin/mkdir -p -m 0750 /var/lib/kubelet/device-plugins", ["65536", "512M", "-900"]),
        ("extender", "+/bin/sh -ec ", ["65536", "1G", "500"]),
        ("dashboard", "+/bin/sh -ec ", ["65536", "512M", "900"]),
    ],
)
def test_what_a_unit_runs_before_it_and_how_much_it_may_take_is_said_once(units: Path, name: str, before: str, lines: list[str]) -> None:
    text = unit(units, "plain", name).replace("\\\n", " ").splitlines()
    said = {key: [line.partition("=")[2] for line in text if line.startswith(f"{key}=")] for key in (*LIMITS, "ExecStartPre")}
    (first,) = said.pop("ExecStartPre")
    assert first.startswith(before)
    assert said == {key: [line] for key, line in zip(LIMITS, lines, strict=True)}


@pytest.mark.parametrize(
    ("host", "unit_name", "metrics", "token"),
    [
        ("plain", "GiB", None, None),
        ("open", "64MiB", ("10.0.0.5", 9500), "/etc/gpushare/device-plugin-metrics.token"),
        ("six", "GiB", ("::1", 9440), None),
        ("half", "GiB", ("127.0.0.1", 9440), "/etc/gpushare/device-plugin-metrics.token"),
    ],
)
def test_the_device_plugin_reads_its_options(
    units: Path, host: str, unit_name: str, metrics: tuple[str, int] | None, token: str | None
) -> None:
    settings = plugin.parse_arguments(arguments(units, host, "device-plugin"))
    assert (settings.node, settings.strategy, settings.kubeconfig) == ("gpu1", "envvar", "/etc/gpushare/device-plugin.kubeconfig")
    assert TokenFiles.of(settings) == TokenFiles(
        Path("/etc/gpushare/device-plugin.token"), Path("/var/lib/gpushare-device-plugin/token"), 604800
    )
    changed = host == "open"
    assert (settings.overuse, settings.overuse_grace, settings.unstartable) == (
        ("evict", 300, "evict") if changed else ("report", 60, "report")
    )
    found = settings.metrics_listen
    assert settings.unit.name == unit_name
    assert found == metrics
    assert settings.metrics_token_file == (Path(token) if token else None)


def test_kubelets_root_moves_its_pods_and_pod_resources_and_not_its_folder_of_device_plugins(units: Path) -> None:
    settings = plugin.parse_arguments(arguments(units, "plain", "device-plugin"))
    assert (str(settings.kubelet_root), str(settings.device_plugins_dir)) == ("/data/kubelet", "/var/lib/kubelet/device-plugins")
    lines = unit(units, "plain", "device-plugin").splitlines()
    assert "ReadWritePaths=/var/lib/kubelet/device-plugins" in lines
    # kubelet's --cert-dir does not follow its root, either; some are told so.
    assert "InaccessiblePaths=-/var/lib/kubelet/pki -/data/kubelet/pki -/data/kubelet/pods" in lines


@pytest.mark.parametrize(
    ("host", "isolation", "running", "powers"),
    [
        ("plain", "auto", False, ""),
        ("limits", "auto", False, "CAP_SYS_ADMIN"),
        ("without", "none", False, ""),
        ("open", "driver", True, "CAP_SYS_ADMIN"),
    ],
)
def test_only_a_plugin_that_limits_pods_has_the_power_to(units: Path, host: str, isolation: str, running: bool, powers: str) -> None:
    """By the loaded driver; an older one has no limits."""
    settings = plugin.parse_arguments(arguments(units, host, "device-plugin"))
    assert (settings.isolation, settings.limit_running_pods) == (isolation, running)
    lines = unit(units, host, "device-plugin").splitlines()
    assert f"CapabilityBoundingSet={powers}" in lines
    assert f"ProtectControlGroups={'no' if powers else 'yes'}" in lines


@pytest.mark.parametrize(
    ("host", "placement", "gpus", "preempt", "lease", "metrics", "token"),
    [
        ("plain", "binpack", "", True, "kube-system/kube-scheduler", None, False),
        ("open", "spread", "binpack", False, "infra/mine", "10.0.0.5:9441", True),
        ("six", "binpack", "", True, "kube-system/kube-scheduler", "[::1]:9501", False),
        ("half", "binpack", "", True, "kube-system/kube-scheduler", None, False),
    ],
)
def test_the_extender_reads_its_options(
    units: Path, host: str, placement: str, gpus: str, preempt: bool, lease: str, metrics: str | None, token: bool
) -> None:
    settings = extender.parse_arguments(arguments(units, host, "extender"))
    assert (settings.placement, settings.gpu_placement, settings.preempt) == (placement, gpus, preempt)
    assert settings.most_nodes == (100 if host == "open" else 0)
    assert (settings.lease, settings.metrics_listen and str(settings.metrics_listen)) == (lease, metrics)
    assert (str(settings.listen), settings.evict) == ("127.0.0.1:32766", host == "open")
    folder = Path("/run/gpushare-extender-copies")
    assert settings.kubeconfig == str(folder / "extender.kubeconfig")
    assert TokenFiles.of(settings) == TokenFiles(folder / "extender.token", Path("/var/lib/gpushare-extender/token"), 604800)
    tls = None if host == "six" else TlsFiles(folder / "extender.crt", folder / "extender.key", folder / "ca.crt")
    assert settings.tls == tls
    # The process may not read the original: it gets a copy, made anew at each reload.
    copies = [line for line in unit(units, host, "extender").splitlines() if line.startswith("ExecStartPre=")]
    assert ("/etc/gpushare/extender-metrics.token" in copies[0]) == token
    assert settings.metrics_token_file == (folder / "extender-metrics.token" if token else None)


@pytest.mark.parametrize(("host", "most"), [("plain", "1G"), ("open", "3G")])
def test_the_extender_has_the_memory_of_its_variable(units: Path, host: str, most: str) -> None:
    assert [line for line in unit(units, host, "extender").splitlines() if line.startswith("MemoryMax=")] == [f"MemoryMax={most}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_extenders_copies_are_its_own_and_their_folder_is_not(units: Path, tmp_path: Path) -> None:
    """Run what the unit runs as root, while whoever has the extender lays links where root wrote before."""
    text = unit(units, "plain", "extender").replace("\\\n", " ")
    (command,) = (line for line in text.splitlines() if line.startswith("ExecStartPre="))
    sources = tmp_path / "etc"
    sources.mkdir()
    (sources / "extender.token").write_text("secret")
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    victim = tmp_path / "victim"
    victim.write_text("x")
    victim.chmod(0o644)
    for name in ("extender.token", "extender.token.new", "ca.crt"):
        (own / name).symlink_to(victim)
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies/ca.crt").write_text("of yesterday")
    argv = shlex.split(command.partition("=+")[2].replace("%%", "%").replace("/run/gpushare-extender-copies", str(tmp_path / "copies")))
    argv[-1] = argv[-1].replace("/etc/gpushare/pki", str(sources)).replace("/etc/gpushare", str(sources))
    for _again in range(2):
        subprocess.run(argv, env={"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": str(own)}, check=True)
    copies = tmp_path / "copies"
    assert (copies.stat().st_uid, stat.S_IMODE(copies.stat().st_mode)) == (0, 0o711)
    assert os.listdir(copies) == ["extender.token"]
    copy = copies / "extender.token"
    assert (copy.read_text(), copy.stat().st_uid, stat.S_IMODE(copy.stat().st_mode)) == ("secret", 65534, 0o400)
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("x", 0o644)


@pytest.mark.parametrize("name", ["extender", "device-plugin", "pki"])
def test_what_a_unit_starts_is_of_one_release(units: Path, name: str) -> None:
    for host, environment in (("plain", "/opt/gpushare/0.1.0-aaaaaaaaaaaa"), ("next", "/opt/gpushare/0.2.0-bbbbbbbbbbbb")):
        (line,) = (line for line in unit(units, host, name).splitlines() if line.startswith("ExecStart="))
        assert line.split()[0] == f"ExecStart={environment}/bin/gpushare-{name}"
        assert "/current/" not in unit(units, host, name)


class Host(Systemd):
    """A host whose systemd really starts what the unit names, below `root`; builds environments whose plugin is a script."""

    def __init__(self, root: Path) -> None:
        (root / "units").mkdir(parents=True)
        super().__init__(root / "units")
        self.root, self.script = root, ""
        self.path = root / "units/gpushare-device-plugin.service"
        self.settings = self.path.with_suffix(".env")
        self.environments = Environments(str(root / "opt/gpushare"))

    def build(self, name: str, script: str) -> None:
        def run(argv: list[str]) -> tuple[int, str, str]:
            folder = Path(self.environments.path(name), "bin")
            if argv[1:3] == ["-m", "venv"]:
                folder.mkdir(parents=True)
                (folder / "python").touch(mode=0o755)
            else:
                (folder / "gpushare-device-plugin").write_text(f"#!/bin/sh\n{script}\n")
                (folder / "gpushare-device-plugin").chmod(0o755)
            return 0, "", ""

        self.environments.build(name, Interpreter("/usr/bin/python3", "3.11"), [["install", "wheel"]], run, {})

    def on_restart(self) -> tuple[int, str, str]:
        self.loaded = self.loaded or self.path.read_text()
        settings = self.settings.read_text()
        (line,) = (line for line in settings.splitlines() if line.startswith("GPUSHARE_COMMAND="))
        program = line.partition("=")[2].strip('"').split()[0]
        done = subprocess.run([f"{self.root}{program}"], capture_output=True, text=True, check=False)
        self.running = settings if done.returncode == 0 else None
        self.said = done.stdout.strip()
        return (0, "", "") if done.returncode == 0 else (1, "", "Job failed.")

    def install(self, text: str) -> None:
        """As the role does it."""
        wanted = DaemonFiles("gpushare-device-plugin", text, str(self.root / "etc/kubeconfig"), kubeconfig_content="server: a\n")
        (self.root / "etc").mkdir(exist_ok=True)
        health, folder = Health(None, "synced", 0), str(self.path.parent)
        daemon = Daemon("gpushare-device-plugin", health, self, self.environ, folder, settings=folder)
        converge(InstalledDaemon(wanted, daemon, Companions({}, self, folder, folder), lambda: None), False, False)


def test_a_release_whose_plugin_exits_is_put_back_with_its_code(units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FOLDER", str(tmp_path / "journal"))
    host = Host(tmp_path / "root")
    host.build("0.1.0-aaaaaaaaaaaa", "echo 0.1.0")
    host.install(unit(units, "plain", "device-plugin"))
    host.environments.switch("0.1.0-aaaaaaaaaaaa")
    host.build("0.2.0-bbbbbbbbbbbb", "echo 0.2.0; exit 1")
    with pytest.raises(TransactionError, match="what was there is restored"):
        host.install(unit(units, "next", "device-plugin"))
    assert (host.said, host.running is not None) == ("0.1.0", True)
    assert host.environments.current() == "0.1.0-aaaaaaaaaaaa"
    assert "daemon-reload" not in host.calls


@pytest.mark.parametrize("name", ["extender", "device-plugin", "pki"])
def test_another_release_has_the_same_unit_and_systemd_need_not_read_it_again(units: Path, name: str) -> None:
    (one, first), (other, second) = (apart(unit(units, host, name), f"/etc/gpushare/{name}.env", []) for host in ("plain", "next"))
    assert one == other
    assert ("/0.1.0-aaaaaaaaaaaa/" in first, "/0.2.0-bbbbbbbbbbbb/" in second) == (True, True)


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_no_word_is_lost_on_the_way_to_the_settings(units: Path, host: str) -> None:
    _text, settings = apart(unit(units, host, "extender"), "/x.env", [])
    command = settings.partition("GPUSHARE_COMMAND=")[2].strip().strip('"').split()
    assert command[1:] == ["--config", "/etc/gpushare/gpushare-extender.yaml"]


@pytest.mark.parametrize(("name", "second"), [("device-plugin", "six"), ("extender", "metrics")])
def test_a_change_of_the_settings_is_one_of_the_process_and_of_its_sockets(units: Path, tmp_path: Path, name: str, second: str) -> None:
    """The unit is the same on every host without limits by the driver, so that systemd need not read it again."""
    made = {}
    for host in ("plain", second):
        wanted = replace(files(units, host, name), kubeconfig_path=str(tmp_path / "kubeconfig"))
        daemon = Daemon(
            wanted.name, Health(None, "synced", 0), lambda argv: (0, "", ""), lambda pid: b"", str(tmp_path), settings=str(tmp_path)
        )
        plan = InstalledDaemon(wanted, daemon, Companions({}, daemon._run, str(tmp_path), str(tmp_path)), lambda: None).present(None)
        made[host] = {Path(path).name: text for path, text in plan.files.items()}
    (same, one, other) = (f"gpushare-{name}{end}" for end in (".service", ".env", ".yaml"))
    assert made["plain"].keys() == made[second].keys() == {same, one, other}
    assert {path for path in made["plain"] if made["plain"][path] != made[second][path]} == {one, other}
    held = {host: sockets("x", "", files(units, host, name).config)["x-metrics.socket"] for host in made}
    assert held["plain"] is None
    assert f"ListenStream=[::1]:{9440 if name == 'device-plugin' else 9441}\n" in (held[second] or "")


COPIES = "/run/gpushare-dashboard-copies"


@pytest.mark.parametrize(
    ("host", "listens", "names", "certificate"),
    [
        ("plain", ("127.0.0.1", 9442), (), "dashboard"),
        ("open", ("0.0.0.0", 9500), ("gpus.example.org", "gpus"), "dashboard"),
        ("certificate", ("::1", 9442), (), "a"),
        ("proxy", ("127.0.0.1", 9442), ("gpus.example.org",), None),
    ],
)
def test_the_dashboard_reads_its_options(
    units: Path, monkeypatch: pytest.MonkeyPatch, host: str, listens: tuple[str, int], names: tuple[str, ...], certificate: str | None
) -> None:
    monkeypatch.setattr(TokenFile, "current", lambda _self: "x" * 16)
    settings = dashboard.parse_arguments(arguments(units, host, "dashboard"))
    assert (settings.listen, settings.host_names) == (listens, names)
    files = None if certificate is None else (Path(f"{COPIES}/{certificate}.crt"), Path(f"{COPIES}/{certificate}.key"))
    assert (settings.tls_cert, settings.tls_key) == (files or (None, None))
    assert settings.kubeconfig == f"{COPIES}/dashboard.kubeconfig"
    tokens = TokenFiles.of(settings)
    assert tokens is not None
    assert str(tokens.own) == "/var/lib/gpushare-dashboard/token"
    assert (settings.title, settings.history is not None) == (("gpus-1", True) if host == "open" else ("", False))
    copied = unit(units, host, "dashboard")
    assert "/etc/gpushare/dashboard-viewer.token" in copied
    assert ("/etc/ssl/a.key" in copied) == (certificate == "a")
    assert ("/etc/gpushare/dashboard-pki/dashboard.key" in copied) == (certificate == "dashboard")


def test_the_certificate_of_the_dashboard_has_the_names_that_people_use(units: Path) -> None:
    for host, names in (("plain", ["127.0.0.1"]), ("open", ["gpus.example.org", "gpus"])):
        options = pki._parser().parse_args(arguments(units, host, "dashboard-pki"))
        assert (options.command, options.server, options.name, options.reload) == (
            "ensure",
            "dashboard",
            names,
            "gpushare-dashboard.service",
        )
        assert str(options.dir) == "/etc/gpushare/dashboard-pki"
