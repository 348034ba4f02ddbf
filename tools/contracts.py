# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The imports that each folder of the runtime and of the plugins may have: one table, and the check that reads it.

A module without a contract is an error, so a new folder needs its row here. `tests/unit/test_imports.py` runs the check.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tree import REPOSITORY

#: Modules without clock, I/O or log, for folders that only decide.
PURE: Final = frozenset(
    {
        "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools", "hashlib", "heapq",
        "itertools", "json", "math", "operator", "re", "typing",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Area:
    """A tree of folders with contracts. Modules are named by their dotted path below it."""

    folder: str
    package: str
    #: Folder or module → the others of this area that it may import. The deepest row counts.
    contracts: Mapping[str, tuple[str, ...]]
    #: Modules that every folder may import, and that import none.
    everywhere: tuple[str, ...]
    #: Folder → the packages of others that it may import.
    others: Mapping[str, tuple[str, ...]]
    #: Folders that may import no more of the standard library than `PURE`.
    pure: frozenset[str] = frozenset()
    #: Module of a pure folder → further modules of the standard library.
    further: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return REPOSITORY / self.folder

    def modules(self) -> list[Path]:
        """The files that a contract must cover."""
        return [path for path in sorted(self.root.rglob("*.py")) if path.parent != self.root or path.name != "__init__.py"]

    def module_of(self, path: Path) -> str:
        """The dotted name of a file; a package's own file counts as a module of it."""
        return ".".join(path.relative_to(self.root).with_suffix("").parts)

    def contract_of(self, module: str) -> str:
        """The row that a module is under; "" for none."""
        return _deepest(self.contracts, module)

    def imports(self, module: str, source: str) -> set[str]:
        """The modules that a module imports anywhere. Of its own area the imported name is the last part: it may be a module's."""
        found = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                package = f"{self.package}.{module}".split(".")[: -node.level] if node.level else []
                start = ".".join([*package, *filter(None, [node.module])])
                found |= {f"{start}.{alias.name}" for alias in node.names} if below(start, self.package) else {start}
        return found

    def forbidden(self, module: str, source: str) -> Iterator[str]:
        """The imports that break a module's contract, those of its own area without the area's name."""
        own = self.contract_of(module)
        allowed = (own, *self.everywhere, *self.contracts.get(own, ()))
        others = self.others.get(_deepest(self.others, module), ())
        for name in sorted(self.imports(module, source)):
            if below(name, self.package):
                inner = name.removeprefix(self.package).lstrip(".")
                # Below a folder of its own kind a deeper row is another folder.
                if not any(below(inner, other) for other in allowed):
                    yield inner
            elif not (self._is_standard(module, name) or any(below(name, other) for other in others)):
                yield name

    def _is_standard(self, module: str, name: str) -> bool:
        top = name.split(".")[0]
        if _deepest(self.pure, module):
            return top in PURE | self.further.get(module, frozenset())
        return top in sys.stdlib_module_names


def below(module: str, folder: str) -> bool:
    """Whether a module is a folder or is in it, by dotted names."""
    return module == folder or module.startswith(f"{folder}.")


def _deepest(rows: Mapping[str, object] | frozenset[str], module: str) -> str:
    return max((row for row in rows if below(module, row)), key=len, default="")


RUNTIME: Final = Area(
    folder="files/gpushare_runtime/gpushare_runtime",
    package="gpushare_runtime",
    contracts={
        "errors": (),
        "core": (),
        "daemon": (),
        "kube": ("daemon",),
        "settings": ("core", "daemon.runner"),
        "mps": ("core", "daemon"),
        "pki": ("daemon.files",),
        "probe": (),
        "extender": ("core", "daemon", "kube", "settings"),
        "device_plugin": ("core", "daemon", "dra", "kube", "settings"),
        "device_plugin.node": ("core", "daemon.exposition", "daemon.log_line", "daemon.sync"),
        "dra": ("core", "daemon", "kube", "settings"),
        "device_plugin.kubelet": ("core", "daemon", "device_plugin.node"),
        "device_plugin.gpu": ("core", "daemon", "device_plugin.node"),
        "device_plugin.host": ("core", "daemon", "device_plugin.node"),
        "kubectl_gpushare": ("core", "dra.pods", "dra.slices", "kube"),
        # It shows what the views compute.
        "dashboard": ("core", "daemon", "kube", "kubectl_gpushare", "settings"),
        # A command starts the dashboard.
        "kubectl_program": ("core", "kube", "kubectl_gpushare", "dashboard.local"),
        "doctor": (
            "core.protocol",
            "core.inventory",
            "kube",
            "pki",
            "settings",
            "device_plugin.host.cdi_specs",
            "device_plugin.kubelet.checkpoint",
            "device_plugin.node.cdi",
        ),
    },
    everywhere=("__version__", "errors"),
    others={
        "daemon": ("aiohttp", "grpc", "prometheus_client"),
        "dashboard": ("aiohttp", "orjson"),
        "device_plugin": ("google.protobuf", "grpc", "orjson", "prometheus_client"),
        "dra": ("google.protobuf", "grpc"),
        "device_plugin.gpu": ("prometheus_client", "pynvml"),
        "device_plugin.host": ("orjson", "prometheus_client", "yaml"),
        "extender": ("httptools", "orjson", "prometheus_client", "uvloop"),
        "kube": ("aiohappyeyeballs", "aiohttp", "httptools", "msgspec", "orjson", "yaml", "yarl"),
        "kubectl_gpushare": ("aiohttp", "kubernetes", "orjson", "rich", "yaml"),
        "kubectl_program": ("rich",),
        "mps": ("pynvml",),
        "settings": ("yaml",),
        "pki": ("cryptography",),
    },
    pure=frozenset({"core", "errors"}),
    # Reads times that others have written, and must not look at the clock itself.
    further={"core.node_report": frozenset({"datetime"})},
)
PLUGINS: Final = Area(
    folder="plugins",
    package="ansible_collections.gpushare.kubernetes.plugins",
    contracts={
        "module_utils._formats": (),
        "module_utils._cluster.names": (),
        "module_utils._host": ("module_utils._formats",),
        "module_utils._host.container_runtimes": (),
        "module_utils._change": tuple(
            f"module_utils.{name}" for name in ("_host", "_cluster.names", "_formats.answers", "_formats.versions")
        ),
        "module_utils._facts": ("module_utils._formats", "module_utils._host", "module_utils._cluster.names"),
        "module_utils._facts.cgroup_drivers": (
            "module_utils._formats",
            "module_utils._host",
            "module_utils._facts.kubernetes",
            "module_utils._runtimes",
        ),
        "module_utils._facts.device_strategy": (
            "module_utils._formats",
            "module_utils._host",
            "module_utils._facts.cdi_specs",
            "module_utils._facts.kubernetes",
            "module_utils._runtimes.cri",
        ),
        "module_utils._cluster": ("module_utils._formats", "module_utils._host"),
        "module_utils._identity": ("module_utils._formats.answers", "module_utils._host", "module_utils._cluster"),
        "module_utils._runtimes": ("module_utils._formats", "module_utils._host", "module_utils._change"),
        "module_utils._kubelet": (
            "module_utils._formats",
            "module_utils._host",
            "module_utils._change",
            "module_utils._facts",
            "module_utils._cluster.node_ready",
        ),
        "module_utils._driver": ("module_utils._formats", "module_utils._host", "module_utils._change", "module_utils._facts"),
        "module_utils._packages": ("module_utils._formats", "module_utils._host", "module_utils._change", "module_utils._facts.system"),
        "module_utils._toolkit": tuple(
            f"module_utils.{name}" for name in ("_facts.advisories", "_facts.cdi_specs", "_formats", "_host", "_change")
        ),
        "module_utils._daemon": tuple(
            f"module_utils.{name}"
            for name in (
                *("_formats.answers", "_formats.config_document", "_formats.credentials", "_formats.finding"),
                *("_host", "_change", "_cluster.names", "_identity.token"),
            )
        ),
        "module_utils._operations": tuple(
            f"module_utils.{name}"
            for name in ("_formats", "_host", "_change", "_facts", "_daemon", "_runtimes", "_toolkit", "_identity.token")
        ),
        "module_utils._scheduler": (
            "module_utils._host",
            "module_utils._change",
            "module_utils._cluster",
            "module_utils._daemon.health",
            "module_utils._formats.answers",
            "module_utils._formats.yaml_scalars",
        ),
        "module_utils._removal": tuple(
            f"module_utils.{name}" for name in ("_formats.answers", "_host", "_change", "_cluster", "_daemon", "_scheduler.manifest")
        ),
        "module_utils._takeover": (
            "module_utils._cluster.dra",
            "module_utils._cluster.names",
            "module_utils._cluster.kubectl",
            "module_utils._cluster.objects",
            "module_utils._facts.device_managers",
            "module_utils._formats.answers",
            "module_utils._formats.quantity",
        ),
        "module_utils._evidence": tuple(
            f"module_utils.{name}"
            for name in ("_formats", "_host", "_facts", "_cluster", "_runtimes", "_change", "_daemon.virtual_environment", "_scheduler")
        ),
        "module_utils._in_cluster": tuple(
            f"module_utils.{name}"
            for name in (
                "_formats",
                "_cluster",
                "_evidence.cluster",
                "_facts.capacity",
                "_removal.cluster",
                "_scheduler.proof",
                "_takeover",
            )
        ),
        "plugin_utils._answers": ("module_utils._formats.finding", "module_utils._operations.table", "modules", "plugin_utils._shape"),
        "plugin_utils._report": ("module_utils._formats.finding",),
        "plugin_utils._secrets": ("module_utils._formats.credentials",),
        "plugin_utils._shape": ("module_utils._formats.answers",),
        "plugin_utils._wheel": (),
        "plugin_utils._bundle": (
            *(f"module_utils.{name}" for name in ("_daemon.virtual_environment", "_formats", "_host.received", "_packages.openpgp")),
            "plugin_utils._shape",
            "plugin_utils._wheel",
        ),
        "plugin_utils._yaml": ("module_utils._formats.yaml_scalars", "plugin_utils._shape"),
        "plugin_utils._manifests": (
            *(f"module_utils.{name}" for name in ("_cluster.names", "_cluster.public", "_formats.config_document", "_scheduler")),
            "plugin_utils._settings",
        ),
        "plugin_utils._preflight": (
            *(
                f"module_utils.{name}"
                for name in (
                    "_cluster.names",
                    "_cluster.public",
                    "_driver.generations",
                    "_facts",
                    "_formats",
                    "_host.container_runtimes",
                    "_in_cluster.claims",
                    "_kubelet.gates",
                    "_takeover.operator",
                )
            ),
            "plugin_utils._bundle",
            "plugin_utils._report",
            "plugin_utils._settings",
            "plugin_utils._wheel",
        ),
        "plugin_utils._subjects": tuple(
            f"module_utils.{name}" for name in ("_change.subjects", "_cluster.names", "_facts.device_strategy", "_operations.table")
        ),
        "plugin_utils._judge": (
            *(
                f"module_utils.{name}"
                for name in ("_cluster.names", "_driver", "_facts", "_formats.finding", "_scheduler.scheduler_config", "_takeover.operator")
            ),
            *(
                f"plugin_utils.{name}"
                for name in (
                    "_answers",
                    "_bundle",
                    "_driver",
                    "_preflight",
                    "_settings",
                    "_manifests",
                    "_removal",
                    "_report",
                    "_subjects",
                    "_takeover",
                    "_verdict",
                    "_wheel",
                )
            ),
        ),
        "plugin_utils._removal": ("module_utils._cluster.names", "plugin_utils._answers"),
        "plugin_utils._takeover": (
            "module_utils._cluster.names",
            "module_utils._facts.device_managers",
            "module_utils._formats",
            "module_utils._takeover.original",
        ),
        "plugin_utils._driver": ("module_utils._driver.facts", "plugin_utils._preflight.host"),
        "plugin_utils._scheduler": (
            "module_utils._change.journal",
            "module_utils._change.undo",
            "module_utils._cluster.names",
            "module_utils._formats",
            "module_utils._host",
            "module_utils._scheduler",
            "plugin_utils._yaml",
        ),
        "plugin_utils._verdict": (
            *(f"module_utils.{name}" for name in ("_facts", "_cluster", "_formats", "_scheduler")),
            "plugin_utils._preflight.gpus",
            "plugin_utils._preflight.host",
            "plugin_utils._report",
            "plugin_utils._yaml",
        ),
        "modules": ("module_utils",),
        "action": ("module_utils", "plugin_utils"),
        "plugin_utils._settings": (),
        "lookup": ("plugin_utils._manifests", "plugin_utils._preflight.variables", "plugin_utils._settings", "plugin_utils._subjects"),
        "callback": ("plugin_utils._screen",),
        "plugin_utils._screen": ("module_utils._formats",),
        "doc_fragments": (),
    },
    everywhere=("module_utils._formats.failure",),
    others={
        "modules": ("ansible.module_utils",),
        "action": ("ansible", "yaml"),
        "lookup": ("ansible",),
        "callback": ("ansible",),
        "plugin_utils": ("ansible", "packaging", "yaml"),
    },
)
AREAS: Final = (RUNTIME, PLUGINS)
