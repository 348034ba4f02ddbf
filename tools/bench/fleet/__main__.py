# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a fleet costs the controller: `python -m bench.fleet [--nodes 10,25] [--json FILE] [--squares]`.

Ansible, the playbooks, roles, lookups, action plugins and modules' archives are real. The hosts are stand-ins (`answers.py`), which answer
for a module instead of running it, in the process that would otherwise be ssh. So neither ssh nor a host is in the figures. With `--ssh`
ssh is: each host is an address of this machine, where OpenSSH's server starts the stand-in as the host's Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.fleet.machines import prepared
from bench.processes import cpu_seconds, parent
from results import Results, environment

Json = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[3]
HERE: Final = Path(__file__).resolve().parent
PLANES: Final = 3
FIRST, UPGRADE = "first site", "upgrade"
#: What is run on each fleet, in this order, under the name that the page has, with the playbook.
STEPS: Final = {FIRST: "site", "site": "site", "preflight": "preflight", "verify": "verify", UPGRADE: "upgrade", "uninstall": "uninstall"}


@dataclass(frozen=True)
class Cost:
    """What one run cost. seconds: CPU of the controller, without what hosts spend. wall: seconds from start to end, which mean something
    on a machine where nothing else runs. peak: memory of its largest process, in MiB. together: the most of all its processes, where a page
    that several have counts once; None where nobody looked.

    modules, results: executions of modules and results of tasks, of all hosts. changed: the results that report a change. reads: of all
    variables of a host by `hostvars`. sent, received: bytes of modules and of their answers.
    """

    step: str
    nodes: int
    forks: int
    seconds: float
    wall: float
    peak: float
    modules: int
    results: int
    changed: int
    reads: int
    sent: int
    received: int
    together: float | None = None


class Fleet:
    """Stand-ins for three control planes and so many GPU nodes, below a folder. settled: on which everything is installed already. ssh:
    by which they are reached, if at all. weighed: the memory of all processes is looked at, which costs CPU of the machine."""

    def __init__(self, folder: Path, nodes: int, forks: int, settled: bool = False, ssh: Ssh | None = None, weighed: bool = False) -> None:
        self.folder, self.nodes, self.forks = folder, nodes, forks
        planes, gpus = [f"cp{one}" for one in range(1, PLANES + 1)], [f"gpu{one:03}" for one in range(1, nodes + 1)]
        (folder / "state").mkdir(parents=True)
        (folder / "hosts.json").write_text(json.dumps({name: number for number, name in enumerate([*planes, *gpus], 1)}))
        (folder / "machines.json").write_text(
            json.dumps({**prepared(folder / "roots", ROOT / "files/gpushare_runtime"), "is_settled": settled})
        )
        shutil.copy(HERE / "answers.py", folder)
        (folder / "answers.py").chmod(0o755)
        variables: Json = {"ansible_connection": "answering", "ansible_python_interpreter": "/usr/bin/python3"}
        addresses = {name: name for name in [*planes, *gpus]}
        if ssh:
            variables = ssh.variables | {"ansible_connection": "ssh", "ansible_python_interpreter": str(folder / "answers.py")}
            addresses = {name: f"127.64.{number >> 8}.{number & 255}" for number, name in enumerate(addresses, 1)}
            (folder / "addresses.json").write_text(json.dumps({address: name for name, address in addresses.items()}))
        self._ssh, self._weighed = ssh, weighed
        groups = {"kube_control_plane": planes, "gpu_nodes": gpus}
        children = {group: {"hosts": {name: {"ansible_host": addresses[name]} for name in names}} for group, names in groups.items()}
        (folder / "inventory.json").write_text(json.dumps({"all": {"vars": variables, "children": children}}))

    def start(self, step: str, **variables: Any) -> subprocess.Popen[bytes]:
        """A step of STEPS with these variables, which prints to the file `output` of the folder."""
        if step == UPGRADE:
            self.age()
        (self.folder / "calls").write_text("")
        program = Path(sys.executable).parent / "ansible-playbook"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")} | environment(
            self.folder / "results"
        )
        environ |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"), "ANSIBLE_NOCOLOR": "1"}
        environ |= {"ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection"), "FLEET_WORLD": str(self.folder)}
        environ |= {"ANSIBLE_FORKS": str(self.forks), "ANSIBLE_PIPELINING": "1"}
        command: list[str | Path] = [program, "-i", self.folder / "inventory.json", f"{STEPS[step]}.yml", "-e", json.dumps(variables)]
        with (self.folder / "output").open("wb") as output:
            return subprocess.Popen(command, env=environ, cwd=ROOT / "playbooks", stdout=output, stderr=subprocess.STDOUT)

    def age(self) -> None:
        """What the first site has left becomes that of an earlier release: another environment, and daemons with another unit."""
        for path in (self.folder / "state").iterdir():
            there: Json = json.loads(path.read_text())
            if "environment" in there:
                there["environment"] = {**there["environment"], "wheel_sha256": "of an earlier release"}
                path.write_text(json.dumps({key: "" if key.startswith("daemon ") else value for key, value in there.items()}))

    def run(self, step: str, **variables: Any) -> tuple[Cost, Results]:
        """What a step of STEPS with these variables cost and did. RuntimeError where the playbook fails."""
        began = time.monotonic()
        process = self.start(step, **variables)
        with Scales(process.pid) if self._weighed else nullcontext() as scales:
            _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode, wall = os.waitstatus_to_exitcode(status), time.monotonic() - began
        masters = self._ssh.masters() if self._ssh else 0.0
        if process.returncode:
            end = (self.folder / "output").read_text()[-4000:]
            raise RuntimeError(f"{step} on {self.nodes} nodes ended with {process.returncode}:\n{end}")
        found = Results.read(self.folder / "results")
        sizes = [line.split()[2:] for line in (self.folder / "calls").read_text().splitlines()]
        cost = Cost(
            step,
            self.nodes,
            self.forks,
            round(usage.ru_utime + usage.ru_stime + masters, 2),
            round(wall, 1),
            round(usage.ru_maxrss / 1024, 1),
            sum(event["event"] == "module" for event in found.events),
            sum(event["event"] == "result" for event in found.events),
            found.changes().total(),
            found.reads,
            sum(int(sent) for sent, _received in sizes),
            sum(int(received) for _sent, received in sizes),
            round(scales.most, 1) if scales else None,
        )
        return cost, found


class Ssh:
    """OpenSSH's server on this machine, and how Ansible logs in there as root, which nobody can from another machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words: Json = {"Port": port, "ListenAddress": "0.0.0.0", "HostKey": folder / "host", "AuthorizedKeysFile": folder / "user.pub"}
        words |= {"AllowUsers": "root@127.*", "Subsystem": "sftp internal-sftp"}
        words |= {"PasswordAuthentication": "no", "PermitRootLogin": "yes", "StrictModes": "no", "MaxStartups": 500, "PidFile": "none"}
        (folder / "sshd").write_text("".join(f"{word} {value}\n" for word, value in words.items()))
        Path("/run/sshd").mkdir(exist_ok=True)
        self._process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", folder / "sshd"])
        options = "-o ControlMaster=auto -o ControlPersist=3600 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        self.variables: Json = {
            "ansible_port": port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(folder / "user"),
            "ansible_ssh_args": options,
            "ansible_control_path_dir": str(folder),
        }

    def masters(self) -> float:
        """CPU seconds of the connections that the run has left, which it does not wait for. They end."""
        seconds = 0.0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cmdline").read_bytes().startswith(f"ssh: {self._folder}".encode()):
                    seconds += cpu_seconds(int(process.name))
                    os.kill(int(process.name), signal.SIGTERM)
            except OSError:
                # It has ended meanwhile.
                continue
        return seconds

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def ssh_of(wanted: bool) -> Iterator[Ssh | None]:
    """The server while it is needed; None if it is not."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ssh-") as folder:
        server = Ssh(Path(folder))
        try:
            yield server
        finally:
            server.masters()
            server.stop()


class Scales:
    """The memory of a process and all that come from it, looked at every few seconds. most: of all together so far, in MiB, where a page
    that several have counts once (Pss in `proc_pid_smaps(5)`)."""

    def __init__(self, first: int, every: float = 2) -> None:
        self.most = 0.0
        self._first = first
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Scales:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(self._every):
            self.most = max(self.most, sum(map(_mib, self._family())))

    def _family(self) -> set[int]:
        parents = {int(path.name): _parent(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
        family, found = {self._first}, 0
        while found < len(family):
            found = len(family)
            family |= {child for child, parent in parents.items() if parent in family}
        return family


def _parent(process: int) -> int:
    """0 of a process that is gone."""
    try:
        return parent(process)
    except OSError:
        return 0


def _mib(process: int) -> float:
    """0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def squares(smaller: Results, larger: Results, nodes: Sequence[int]) -> list[tuple[float, float, float, str]]:
    """(part that grows with the square of the hosts, CPU seconds on the larger fleet, on the smaller one, the play and task).

    The square's part of the larger fleet's seconds, were the time a sum of a line through zero and a square: largest first.
    """
    few, many = smaller.by_task(), larger.by_task()
    ratio = nodes[1] / nodes[0]
    rows = []
    for key, seconds in many.items():
        before = few.get(key, 0.0)
        rows.append(((seconds - ratio * before) * ratio / (ratio - 1), seconds, before, " / ".join(key)))
    return sorted(rows, reverse=True)


def _record(what: str, costs: Sequence[Cost]) -> Json:
    """One measurement, as fleet.json has it."""
    machine = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "machine": f"{os.cpu_count()} CPUs, {platform.machine()}"}
    versions = {"python": platform.python_version(), "ansible": version("ansible-core")}
    return {"what": what, **machine, "load": round(os.getloadavg()[2], 1), **versions, "runs": [asdict(cost) for cost in costs]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=lambda text: [int(one) for one in text.split(",")], default=[10, 25, 50, 100, 200])
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--steps", type=lambda text: text.split(","), default=list(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--settled", action="store_true", help="everything is installed before the first step")
    parser.add_argument(
        "--installed", type=Path, help="a folder for what the first site leaves; a measurement without that step starts with it"
    )
    parser.add_argument("--memory", action="store_true", help="also look at the memory of all processes together, which takes time")
    parser.add_argument("--ssh", action="store_true", help="over ssh to addresses of this machine, as root: install openssh-server")
    parser.add_argument("--squares", action="store_true", help="print the tasks whose CPU grows faster than the first two fleets")
    parser.add_argument("--json", type=Path, help="a file to which this measurement is added")
    parser.add_argument("--what", default="", help="words about this measurement, for that file")
    given = parser.parse_args()
    before = json.loads(given.json.read_text()) if given.json and given.json.is_file() else []
    costs: list[Cost] = []
    seen: dict[tuple[str, int], Results] = {}
    for nodes in given.nodes:
        with tempfile.TemporaryDirectory(prefix="fleet-") as folder, ssh_of(given.ssh) as ssh:
            fleet = Fleet(Path(folder), nodes, given.forks, given.settled, ssh, given.memory)
            state, kept = fleet.folder / "state", given.installed / str(nodes) if given.installed else None
            if kept and FIRST not in given.steps:
                shutil.copytree(kept, state, dirs_exist_ok=True)
            for step in (step for step in STEPS if step in given.steps):
                cost, seen[step, nodes] = fleet.run(step)
                costs.append(cost)
                print(f"{cost.seconds / nodes:.2f} CPU s a node: {cost}", flush=True)
                if given.json:
                    # After each step: the next one may take a quarter of an hour.
                    given.json.write_text(json.dumps([*before, _record(given.what, costs)], indent=1) + "\n")
                if kept and step == FIRST:
                    shutil.copytree(state, kept, dirs_exist_ok=True)
    if given.squares:
        for step in given.steps:
            first, second = (seen[step, nodes] for nodes in given.nodes[:2])
            print(f"\n{step}: CPU s that grow with the square, of all on {given.nodes[1]} nodes, on {given.nodes[0]} nodes; task")
            for row in squares(first, second, given.nodes)[:20]:
                print("{:8.2f} {:8.2f} {:8.2f}  {}".format(*row))


if __name__ == "__main__":
    main()
