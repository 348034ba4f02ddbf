# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a node takes over from this machine so that pip works there as it works here: CA bundle and pip's settings."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

NODE_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

#: pip's settings about reaching an index; all others are this machine's own affair.
_NETWORK_SETTINGS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)


def pip_configuration_files(env: Mapping[str, str]) -> list[Path]:
    """The files that pip reads, the ones that win last."""
    home = Path(env.get("HOME") or "/root")
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    if named := env.get("PIP_CONFIG_FILE"):
        files.append(Path(named))
    return files


def pip_settings(env: Mapping[str, str], texts: Sequence[str]) -> dict[str, str]:
    """pip's effective network settings for a node, from the environment and the texts of its files.

    What names a file or folder of this machine is dropped, because nodes do not have it.
    """
    settings: dict[str, str] = {}
    for text in texts:
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    settings |= {name.removeprefix("PIP_").lower().replace("_", "-"): value for name, value in env.items() if name.startswith("PIP_")}
    for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        if env.get(variable):
            settings.setdefault("proxy", env[variable])
    kept = {key: settings[key] for key in _NETWORK_SETTINGS if settings.get(key)}
    if "find-links" in kept:
        kept["find-links"] = " ".join(link for link in kept["find-links"].split() if "://" in link)
    kept = {key: value for key, value in kept.items() if value and not value.startswith("file:")}
    if "default-timeout" in kept:
        kept["timeout"] = kept.pop("default-timeout")
    return kept


def pip_conf(settings: Mapping[str, str]) -> str:
    """The node's /etc/pip.conf."""
    values = {**settings, "cert": NODE_CA_BUNDLE, "disable-pip-version-check": "true"}
    return "[global]\n" + "".join(f"{key} = {_continued(value)}\n" for key, value in values.items())


def _continued(value: str) -> str:
    # pip takes several addresses one a line; lines after the first are indented.
    return "\n    ".join(value.split()) if "://" in value else value


def read_pip_settings() -> dict[str, str]:
    """This machine's pip settings, for a node."""
    texts = [path.read_text() for path in pip_configuration_files(os.environ) if path.is_file()]
    return pip_settings(os.environ, texts)


def ca_bundle(env: Mapping[str, str]) -> Path | None:
    """The CA bundle that programs of this machine use, if there is one."""
    for variable in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        if (named := env.get(variable)) and Path(named).is_file():
            return Path(named)
    return Path(NODE_CA_BUNDLE) if Path(NODE_CA_BUNDLE).is_file() else None
