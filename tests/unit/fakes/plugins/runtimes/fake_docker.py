# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What dockerd makes of its command line and its daemon.json: a model of 20.10 and of 28, and real ones where there are any.

The model says what was seen of 20.10.24 (Debian 12) and what daemon/config/config.go and daemon/reload_unix.go of moby do: an option in
both places is an error, "runtimes" alone are merged, and a reload takes from the file what it says, not what it no longer says.
GPUSHARE_DOCKERDS=PATH:PATH… adds real programs, which every test that takes `dockerd` then runs with as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unit.fakes.plugins.runtimes.fake_containerd import Answer

Dockerd = Callable[[Sequence[str]], Answer]

#: Flags with a value → key in daemon.json, as far as the tests use them.
KEYS = {
    **{name: name for name in ("default-runtime", "data-root", "exec-root", "pidfile", "storage-driver", "containerd", "default-shm-size")},
    "add-runtime": "runtimes",
    "host": "hosts",
    "exec-opt": "exec-opts",
    "log-opt": "log-opts",
    "insecure-registry": "insecure-registries",
}
FIELDS = {name.lower(): name for name in ("path", "runtimeArgs", "runtimeType", "options")}
SHORT = {"H": "host", "s": "storage-driver"}
# "dockerd" of docs.docker.com, "Daemon configuration file", without those for TLS and Windows.
OTHERS = (
    *("allow-direct-routing", "authorization-plugins", "bip", "bridge", "builder", "cgroup-parent", "debug", "default-address-pools"),
    *("default-cgroupns-mode", "default-gateway", "default-ipc-mode", "default-network-opts", "default-ulimits", "dns", "dns-opts"),
    *("dns-search", "experimental", "features", "fixed-cidr", "fixed-cidr-v6", "group", "host-gateway-ip", "icc", "init", "init-path"),
    *("ip", "ip-forward", "ip-masq", "ip6tables", "iptables", "ipv6", "labels", "live-restore", "log-driver", "log-format", "log-level"),
    *("max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts", "metrics-addr", "mtu", "no-new-privileges"),
    *("node-generic-resources", "proxies", "raw-logs", "registry-mirrors", "seccomp-profile", "selinux-enabled", "shutdown-timeout"),
    *("storage-opts", "swarm-default-advertise-addr", "userland-proxy", "userland-proxy-path", "userns-remap"),
)


class DockerdError(Exception):
    """It would not start."""


def real_programs() -> list[str]:
    return [path for path in os.environ.get("GPUSHARE_DOCKERDS", "").split(":") if path]


def model(release: str) -> Dockerd:
    """dockerd of this release, such as "20.10.24", as far as its configuration goes."""
    validates = int(release.split(".")[0]) >= 23

    def call(arguments: Sequence[str]) -> Answer:
        if list(arguments) == ["--version"]:
            return 0, f"Docker version {release}+dfsg1, build 5d6db84\n", ""
        words = [word for word in arguments if word != "--validate"]
        if len(words) != len(arguments) and not validates:
            return 125, "", "Status: unknown flag: --validate\nSee 'dockerd --help'., Code: 125\n"
        try:
            found = configured(words, release)
        except DockerdError as error:
            return 1, "", f"unable to configure the Docker daemon with file {flags(words)['config-file'][-1]}: {error}\n"
        if len(words) != len(arguments):
            return 0, "", "configuration OK\n"
        root = Path(found["data-root"])
        assert not root.parent.is_dir(), "a model starts nowhere"
        return 1, "", f"level=info msg=starting\nUnable to get the full path to root ({root}): failed to canonicalise path for {root}\n"

    return call


def flags(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = SHORT.get(name, name)
        assert word.startswith("-"), words
        assert name in KEYS or name == "config-file", word
        found.setdefault(name, []).append(value if equals else pending.pop(0))
    return found


def configured(words: Sequence[str], release: str, reload: bool = False) -> dict[str, Any]:
    """What a process with this command line makes of its daemon.json; with `reload`, of the file alone."""
    given = flags(words)
    path = Path(given.pop("config-file", ["/etc/docker/daemon.json"])[-1])
    data = loaded(path, release) if path.exists() else {}
    unknown = sorted(set(data) - set(KEYS.values()) - set(OTHERS) - ({"graph"} if int(release.split(".")[0]) < 23 else set()))
    if unknown:
        raise DockerdError(f"the following directives don't match any configuration option: {', '.join(unknown)}")
    both = [(KEYS[name], values) for name, values in given.items() if KEYS[name] in data and name != "add-runtime"]
    if both:
        told = ", ".join(f"{key}: (from flag: {values[-1]}, from file: {data[key]})" for key, values in both)
        raise DockerdError(f"the following directives are specified both as a flag and in the configuration file: {told}")
    if isinstance(data.get("runtimes"), dict):
        # Go's encoding/json takes the keys of a structure in any case, and of several the last one.
        data["runtimes"] = {
            name: {FIELDS.get(key.lower(), key): one for key, one in entry.items()} for name, entry in data["runtimes"].items()
        }
    found: dict[str, Any] = dict(data)
    if not reload:
        found.update({KEYS[name]: values[-1] for name, values in given.items() if name not in ("add-runtime", "host")})
        added = dict(value.split("=", 1) for value in given.get("add-runtime", []))
        found["runtimes"] = {**{name: {"path": one} for name, one in added.items()}, **data.get("runtimes", {})}
        found.setdefault("default-runtime", "runc")
    default = found.get("default-runtime", "runc")
    # The file is checked for itself, before the command line is added.
    if default not in {"runc", *(data if "default-runtime" in data else found).get("runtimes", {})}:
        raise DockerdError(f"configuration validation from file failed: specified default runtime '{default}' does not exist")
    return found


def loaded(path: Path, release: str) -> dict[str, Any]:
    # daemon/config/config.go passes over a byte order mark since 23.0.
    text = path.read_text(encoding="utf-8" if int(release.split(".")[0]) < 23 else "utf-8-sig")
    if not text.strip():
        if release < "23":
            raise DockerdError("EOF")
        return {}
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise DockerdError(f"invalid character: {error}") from error
    return found
