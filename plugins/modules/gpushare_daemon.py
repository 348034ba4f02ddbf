#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_daemon
short_description: "Private: run one of gpushare's daemons as a systemd service, with its certificates and its token"
version_added: 0.1.0
description:
  - The roles C(device_plugin), C(extender) and C(dashboard) use this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  what:
    description:
      - V(service) writes the daemon's unit, kubeconfig and seed token, enables and starts it, and waits until it reports that it is
        healthy. Restarts it only if its running process was started from another unit, kubeconfig, settings or environment than those on
        the disk, or before they were written. If only files differ that the unit copies, reloads it. A seed alone restarts nothing.
      - V(service) enables and starts a socket unit, C(<name>.socket) and C(<name>-metrics.socket), for each address that the daemon's
        settings have for itself and for its metrics. root holds the address, so that no other user gets it while the daemon restarts.
      - V(service) restores the previous files and returns the daemon's own log, if the daemon does not start. A unit that has changed
        needs C(systemctl daemon-reload). If that would take the GPUs from a running container, it fails before it changes anything.
      - V(certificates) runs the runtime's C(gpushare-pki). It creates a certificate authority of this host, a server certificate for the
        extender and a client certificate for kube-scheduler. With O(server=dashboard) it creates an authority and a server certificate
        for the dashboard. It renews certificates that are due, and never changes a valid file. In check mode on a host that does not have
        the runtime yet, every missing file is predicted.
      - V(token) reads the claims of a daemon's own token, and checks whether the API server of the daemon's kubeconfig accepts it. Never
        returns the token. Changes nothing.
    type: str
    choices: [service, certificates, token]
    required: true
  name: {description: "Name of the service, without C(.service). V(service) requires it.", type: str}
  unit:
    description:
      - Content of the unit file, with one C(ExecStart). V(service) requires it.
      - The module moves the command line to C(<name>.env) beside the kubeconfig, with a hash of what the daemon reads at its start. systemd
        reads that file at each start. So a new release has the same unit and needs no C(systemctl daemon-reload).
    type: str
  config:
    description:
      - The daemon's settings and the C(kind) of their document, for C(<name>.yaml) beside the kubeconfig. The unit names that file with
        C(--config). Without it the settings are options of the unit.
    type: dict
    default: {}
  kubeconfig_path: {description: "Path of the daemon's kubeconfig, always of mode 0600. V(service) and V(token) require it.", type: path}
  kubeconfig_content: {description: "Content of the kubeconfig. If it is not given, the present one stays.", type: str}
  seed_path: {description: "Path of the daemon's seed, with which it requests its own token; always of mode 0600.", type: path}
  seed_content: {description: "A new seed. If it is not given, the present one stays.", type: str}
  seed_due:
    description: In check mode, whether there would be a new seed, which cannot be made before its account exists.
    type: bool
    default: false
  token_path:
    description:
      - Where the daemon stores its own token. After a new seed, V(service) waits until the daemon has requested such a token. V(token)
        requires it.
    type: path
  secrets:
    description:
      - Files of mode 0600 that the daemon reads beside these, by path with their content. One with empty content is removed. They restart
        nothing. If they are among O(copies), the daemon is reloaded.
    type: dict
    default: {}
  copies:
    description: Files that the unit copies into C(/run/<name>-copies), for a process that may not read the originals.
    type: list
    elements: path
    default: []
  companions:
    description:
      - Units beside the daemon, such as a timer and what it starts, by name with their content. One with empty content is removed.
    type: dict
    default: {}
  health_url:
    description: URL on this host that answers a JSON object, whose C(synced) must be true. By default only systemd's state counts.
    type: str
  says:
    description: Words that must all be in the status that the daemon reports to systemd. A daemon that waits for others has started, too.
    type: list
    elements: str
    default: []
  health_ca: {description: File with the certificate authority that must have signed the certificate of an https O(health_url)., type: path}
  timeout: {description: Seconds within which the daemon must become healthy., type: int, default: 60}
  path: {description: Folder of the certificates and keys., type: path, default: /etc/gpushare/pki}
  program: {description: "The runtime's C(gpushare-pki).", type: path, default: /opt/gpushare/current/bin/gpushare-pki}
  server: {description: The server whose certificates are created., type: str, choices: [extender, dashboard], default: extender}
  names:
    description: Host names and addresses in the certificate of the dashboard, beside those of the loopback interface.
    type: list
    elements: str
    default: []
  reload: {description: Service to reload if it exists and its certificate is new., type: str, default: gpushare-extender.service}
"""

EXAMPLES = r"""
- name: Run the extender
  gpushare.kubernetes.gpushare_daemon:
    what: service
    name: gpushare-extender
    unit: "{{ lookup('ansible.builtin.template', 'gpushare-extender.service.j2') }}"
    kubeconfig_path: /etc/gpushare/extender.kubeconfig
    kubeconfig_content: "{{ extender_identity.kubeconfig }}"
    seed_path: /etc/gpushare/extender.token
    token_path: /var/lib/gpushare-extender/token
    health_url: https://127.0.0.1:32766/healthz
    health_ca: /etc/gpushare/pki/ca.crt
"""

RETURN = r"""
restarted: {description: "Whether it was started or restarted (in check mode, would be).", returned: with O(what=service), type: bool}
files:
  description: New files (in check mode, predicted ones), relative to O(path).
  returned: with O(what=certificates)
  type: list
  elements: str
  sample: [extender.crt, extender.key]
own:
  description: Claims of the token, V(null) without a token.
  returned: with O(what=token)
  type: dict
  contains:
    subject: {description: Whose it is., type: str, sample: "system:serviceaccount:kube-system:gpushare-extender"}
    uid: {description: UID of that ServiceAccount., type: str}
    issued: {description: "Since when it is valid, Unix time in seconds.", type: int}
    expires: {description: "Until when it is valid, Unix time in seconds.", type: int}
    accepted: {description: "Whether the API server accepts it, null if it does not answer.", type: bool}
"""

import os
from dataclasses import fields

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._change.engine import converge
from ..module_utils._change.undo import Rejected
from ..module_utils._daemon import pki
from ..module_utils._daemon.daemon_reload import exposed
from ..module_utils._daemon.files import DaemonFiles, InstalledDaemon, ServiceInstalled, health_of
from ..module_utils._daemon.service import Companions, Daemon, SystemdError, read_environ, sockets
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import answering, changing
from ..module_utils._host.systemd import UNITS
from ..module_utils._identity.token import OwnToken, ask_api_server, own_token

ARGUMENTS = {
    "name": {"type": "str"},
    "unit": {"type": "str"},
    "config": {"type": "dict", "default": {}},
    "kubeconfig_path": {"type": "path"},
    "kubeconfig_content": {"type": "str"},
    "seed_path": {"type": "path"},
    "seed_content": {"type": "str", "no_log": True},
    "seed_due": {"type": "bool", "default": False},
    "token_path": {"type": "path", "no_log": False},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "copies": {"type": "list", "elements": "path", "default": []},
    "companions": {"type": "dict", "default": {}},
    "health_url": {"type": "str"},
    "says": {"type": "list", "elements": "str", "default": []},
    "health_ca": {"type": "path"},
    "timeout": {"type": "int", "default": 60},
    "path": {"type": "path", "default": "/etc/gpushare/pki"},
    "program": {"type": "path", "default": "/opt/gpushare/current/bin/gpushare-pki"},
    "server": {"type": "str", "choices": ["extender", "dashboard"], "default": "extender"},
    "names": {"type": "list", "elements": "str", "default": []},
    "reload": {"type": "str", "default": "gpushare-extender.service"},
}


def service(module: AnsibleModule) -> ServiceInstalled:
    """Write its files, start it, and wait until it is healthy."""
    params = module.params
    if params["kubeconfig_content"] is None and not os.path.exists(params["kubeconfig_path"]) and not module.check_mode:
        module.fail_json(msg=f"{params['kubeconfig_path']} does not exist and kubeconfig_content is not given; give it")
    with changing(module):
        wanted = DaemonFiles(**{field.name: params[field.name] for field in fields(DaemonFiles)})
        health = health_of(wanted, params["health_url"], params["health_ca"], "synced", params["timeout"], params["says"])
        folder, run = os.path.dirname(params["kubeconfig_path"]), module.run_command

        def hurt() -> "str | None":
            return exposed(run)

        own = {"copies": wanted.copied, "settings": folder, "exposed": hurt, "read": wanted.read_at_start}
        daemon = Daemon(params["name"], health, run, read_environ, **own)
        units = {
            **sockets(params["name"], params["unit"], params["config"]),
            **{name: content or None for name, content in params["companions"].items()},
        }
        companions = Companions(units, run, settings=folder, exposed=hurt)
        try:
            done = converge(InstalledDaemon(wanted, daemon, companions, hurt), False, module.check_mode)
        except (SystemdError, OSError) as error:
            raise Rejected(f"{error}; nothing was changed") from error
        for warning in done.warnings:
            module.warn(warning)
        problem = None if done.changed or module.check_mode else daemon.problem()
        if problem:
            module.fail_json(msg=problem)
        return ServiceInstalled(done.changed or params["seed_due"], bool(done.why), done.diff)


def certificates(module: AnsibleModule) -> pki.CertificatesMade:
    """Make those that are missing or due. PkiError."""
    params = module.params
    installed = os.access(params["program"], os.X_OK)
    if not installed and not module.check_mode:
        raise pki.PkiError(f"{params['program']} is not there; expected the runtime: run gpushare.kubernetes.python_environment first")
    with changing(module):
        # A unit that does not exist yet cannot be reloaded, and reads the files when it starts.
        unit = params["reload"] if os.path.exists(os.path.join(UNITS, params["reload"])) else ""
        verb, dashboard = "plan" if module.check_mode else "ensure", params["server"] == "dashboard"
        argv = pki.command(params["program"], params["path"], verb, unit, params["names"] if dashboard else None)
        found = pki.ask(module.run_command, argv) if installed else pki.missing(params["path"], dashboard)
    return pki.CertificatesMade(bool(found.changed), found.changed, found.diff())


def token(module: AnsibleModule) -> OwnToken:
    """Read a daemon's own."""
    try:
        own = own_token(module.params["token_path"], module.params["kubeconfig_path"], ask_api_server)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; expected a file that root can read")
    return OwnToken(False, own)


OPERATIONS = {"service": service, "certificates": certificates, "token": token}


def main() -> None:
    module = AnsibleModule(
        argument_spec={"what": {"type": "str", "choices": list(OPERATIONS), "required": True}, **ARGUMENTS},
        required_if=[("what", "service", ["name", "unit", "kubeconfig_path"]), ("what", "token", ["token_path", "kubeconfig_path"])],
        required_by={"seed_content": ["seed_path", "token_path"]},
        supports_check_mode=True,
    )
    with answering(module):
        module.exit_json(**answer_of(OPERATIONS[module.params["what"]](module)))


if __name__ == "__main__":
    main()
