# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare dashboard`: the page on loopback, with one's own kubeconfig, for as long as the command runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import tempfile
import webbrowser
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.dashboard.access import FixedToken, Hosts
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.history import Prometheus
from gpushare_runtime.dashboard.lookups import Get
from gpushare_runtime.dashboard.server import Dashboard, listen
from gpushare_runtime.dashboard.viewers import OneToken
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kubectl_gpushare.api import TIMEOUT_SECONDS, explain_error, fill_from_files, find_scope
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.kubeconfig import context_name, context_namespace, find_kubeconfig, load_kubeconfig
from gpushare_runtime.kubectl_gpushare.used import read_used
from gpushare_runtime.kubectl_gpushare.watcher import Watcher

ADDRESS: Final = "127.0.0.1"
FILE_SECONDS: Final = 30.0


def run(arguments: argparse.Namespace, show: Callable[[str], None] = print, opened: Callable[[str], bool] = webbrowser.open) -> int:
    """Serve until it is interrupted. InputError says why it cannot. show: prints a line; opened: opens a URL in a browser."""
    try:
        prometheus = Prometheus(arguments.prometheus) if arguments.prometheus else None
    except ValueError as error:
        raise InputError(f"--prometheus: {error}") from None
    asyncio.run(_serve(arguments, prometheus, show, opened))
    return 0


async def _serve(
    arguments: argparse.Namespace, prometheus: Prometheus | None, show: Callable[[str], None], opened: Callable[[str], bool]
) -> None:
    cluster, token = Cluster(), secrets.token_urlsafe(32)
    feed = Feed(cluster, secrets.token_hex(8))
    get: Get | None = None
    async with AsyncExitStack() as stack:
        if arguments.from_file:
            fill_from_files(cluster, arguments.from_file)
            feed.offline = True
            following, title = feed.keep(), ", ".join(Path(file).name for file in arguments.from_file)
        else:
            file = find_kubeconfig(arguments.kubeconfig)
            credentials = load_kubeconfig(file, context=arguments.context)
            own = arguments.namespace or context_namespace(file, arguments.context)
            client = await stack.enter_async_context(KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS))
            try:
                namespace = await find_scope(client, cluster, own)
            except KubeError as error:
                raise InputError(explain_error(error, credentials.server, f"pods in namespace {own}")) from None
            following, get = feed.watch(Watcher(client, cluster, namespace)), client.get
            title = context_name(file, arguments.context) or urlsplit(credentials.server).hostname or ""
        following_task = asyncio.ensure_future(following)
        stack.callback(following_task.cancel)
        using = feed.follow_used(partial(read_used, prometheus.url)) if prometheus is not None else feed.follow_published()
        stack.callback(asyncio.ensure_future(using).cancel)

        def dashboard(port: int) -> Dashboard:
            access = OneToken(FixedToken(token), get)
            return Dashboard(feed, access, Hosts(ADDRESS, port), title=as_text(title, 253), prometheus=prometheus)

        try:
            runner, port = await listen(dashboard, ADDRESS, arguments.port)
        except OSError as error:
            raise InputError(f"cannot listen on {ADDRESS}:{arguments.port}: {error.strerror}; choose another --port, or none") from None
        stack.push_async_callback(runner.cleanup)
        url = f"http://{ADDRESS}:{port}/#token={token}"
        show(f"{url}\nWhoever has this address can read what you may read. Ctrl-C ends the dashboard.")
        if not arguments.no_browser:
            opening = asyncio.ensure_future(_open(url, opened))
            stack.callback(opening.cancel)
        await following_task


async def _open(url: str, opened: Callable[[str], bool]) -> None:
    """Open the address by a file that only this user can read: other users see the arguments of every process, but not its files."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.uname().sysname == "Darwin"):
        return
    with tempfile.TemporaryDirectory(prefix="gpushare-", ignore_cleanup_errors=True) as directory:
        page = _write_page(Path(directory), url)
        with suppress(webbrowser.Error, OSError):
            await asyncio.to_thread(opened, page)
        await asyncio.sleep(FILE_SECONDS)


def _write_page(directory: Path, url: str) -> str:
    """The address of a page that leads to `url`."""
    page = directory / "open.html"
    page.touch(mode=0o600)
    page.write_text(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}"><title>gpushare</title>\n')
    return page.as_uri()
