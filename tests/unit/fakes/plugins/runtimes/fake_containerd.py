# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What containerd makes of its configuration files: a model of 1.x and of 2.x, and real ones where there are any.

The model says what was seen of 1.6.20, 1.7.24, 2.0.5, 2.1.4 and 2.4.2: 1.x replaces a plugin's whole section by that of an imported
file, and a table of runtimes in a file replaces the built-in one; 2.x merges both. GPUSHARE_CONTAINERDS=PATH:PATH… adds real
programs, which every test that takes `containerd` then runs with as well; `lab` there stands for those that the lab has.
"""

from __future__ import annotations

import copy
import glob
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import tomllib

OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
Answer = tuple[int, str, str]
Containerd = Callable[[Sequence[str]], Answer]


def real(program: str) -> Containerd:
    """The program itself."""

    def call(arguments: Sequence[str]) -> Answer:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, cwd="/", check=False, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return call


def real_programs() -> list[str]:
    found: list[str] = []
    for path in filter(None, os.environ.get("GPUSHARE_CONTAINERDS", "").split(":")):
        found += of_the_lab() if path == "lab" else [path]
    return found


def of_the_lab() -> list[str]:
    """Debian's containerd 1.6, and those that the lab builds."""
    # Most tests have none.
    from gpushare_lab import debian
    from gpushare_lab.prepare import the_cache
    from gpushare_lab.runtimes import CONTAINERDS, go_programs

    cache = the_cache()
    built = [str(go_programs(cache, "containerd", CONTAINERDS[name]) / "containerd") for name in ("containerd-1.7", "containerd-2.4")]
    return [str(debian.root_file_system(cache) / "usr/bin/containerd"), *built]


def model(release: str) -> Containerd:
    """containerd of this release, such as "1.6.20", as far as its configuration goes."""
    major = int(release.split(".")[0])
    newest = 2 if major == 1 else 4 if release >= "2.4" else 3

    def call(arguments: Sequence[str]) -> Answer:
        if list(arguments) == ["--version"]:
            return 0, f"containerd github.com/containerd/containerd {release} \n", ""
        if list(arguments) == ["config", "default"]:
            return 0, dumped(effective(None, major, newest)), ""
        option, config, section, how = arguments
        assert (option, section, how) == ("--config", "config", "dump" if major == 1 else "migrate")
        try:
            return 0, dumped(effective(config, major, newest)), ""
        except (tomllib.TOMLDecodeError, OSError) as error:
            return 1, "", f"containerd: failed to load TOML: {error}"

    return call


def effective(config: str | None, major: int, newest: int) -> dict[str, Any]:
    name = OLD if major == 1 else NEW
    data: dict[str, Any] = {"version": newest, "imports": [], "grpc": {"address": "/run/containerd/containerd.sock"}, "plugins": {}}
    pending = [config] if config and (major == 1 or os.path.exists(config)) else []
    files = []
    while pending:
        path = pending.pop(0)
        if path in files:
            continue
        files.append(path)
        if major > 1 and not os.path.exists(path):
            # The process does not start without it, and `migrate` says nothing (2.4.2).
            continue
        with open(path, encoding="utf-8-sig" if major == 1 else "utf-8", newline="") as stream:
            loaded = tomllib.loads(stream.read())
        if major > 1 and loaded.get("version", 1) == 2:
            loaded["plugins"] = migrated(loaded.get("plugins", {}))
        for key, value in loaded.get("plugins", {}).items():
            data["plugins"][key] = value if major == 1 else merged(data["plugins"].get(key, {}), value)
        data.update({key: value for key, value in loaded.items() if key not in ("plugins", "imports", "version")})
        for pattern in loaded.get("imports", []):
            data["imports"] += [pattern] if major > 1 else []
            pattern = os.path.join(os.path.dirname(path), pattern)
            pending += sorted(glob.glob(pattern)) if "*" in pattern else [pattern]
    if major == 1:
        data["imports"] = files
        data["plugins"].pop(NEW, None)
    data["plugins"] = {**data["plugins"], name: decoded(data["plugins"].get(name, {}), major)}
    return data


def migrated(plugins: dict[str, Any]) -> dict[str, Any]:
    """The plugins of a file of version 2 for 2.x: what the new section says itself wins, also a whole table of runtimes."""
    old, new = plugins.get(OLD, {}), plugins.get(NEW, {})
    section = {**old.get("containerd", {}), **new.get("containerd", {})}
    found = {**old, **new, **({"containerd": section} if section else {})}
    return {**{key: value for key, value in plugins.items() if key != OLD}, **({NEW: found} if found else {})}


def merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {key: merged(old[key], new[key]) if key in old and key in new else {**old, **new}[key] for key in {**old, **new}}


def decoded(section: dict[str, Any], major: int) -> dict[str, Any]:
    """A plugin's section over its defaults; on 1.x a table of runtimes is taken as a whole."""
    empty = {"runtime_type": "", "base_runtime_spec": "", "pod_annotations": [], "cni_max_conf_num": 0, "options": {}}
    options = {"BinaryName": "", "Root": "", "IoUid": 0, "SystemdCgroup": False}
    runc = {**empty, "runtime_type": "io.containerd.runc.v2", "sandboxer": "podsandbox", "options": options}
    defaults: dict[str, Any] = {
        "enable_selinux": False,
        "enable_cdi": major > 1,
        "sandbox_image": "pause:3.6",
        "containerd": {"default_runtime_name": "runc", "snapshotter": "overlayfs", "runtimes": {"runc": runc}},
    }
    if major == 1 and "runtimes" in section.get("containerd", {}):
        defaults["containerd"]["runtimes"] = {}
    found: dict[str, Any] = merged(copy.deepcopy(defaults), section)
    if major > 1:
        # It no longer has these tables.
        for name in ("default_runtime", "untrusted_workload_runtime"):
            found["containerd"].pop(name, None)
    runtimes = found["containerd"]["runtimes"]
    found["containerd"]["runtimes"] = {name: {**empty, **entry} for name, entry in runtimes.items()}
    return found


def dumped(data: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """TOML with a header for each table."""
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path else []
    lines += [f"{json.dumps(key)} = {inline(value)}" for key, value in data.items() if not isinstance(value, dict)]
    text = "\n".join(lines) + "\n"
    return text + "".join(dumped(value, (*path, key)) for key, value in data.items() if isinstance(value, dict))


def inline(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(one)}" for key, one in value.items()) + "}"
    return "[" + ", ".join(map(inline, value)) + "]" if isinstance(value, list) else json.dumps(value)
