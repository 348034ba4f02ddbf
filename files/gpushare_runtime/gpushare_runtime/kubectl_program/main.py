# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Command line of `kubectl gpushare`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from gpushare_runtime import __version__
from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.constraints import PLACEMENTS, Labels
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kubectl_gpushare.api import TIMEOUT_SECONDS, explain_error, fill, fill_from_files, need_all
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.errors import InputError, UsageError
from gpushare_runtime.kubectl_gpushare.kubeconfig import KUBECONFIG_HELP, context_namespace, find_kubeconfig, load_kubeconfig
from gpushare_runtime.kubectl_gpushare.selectors import parse_selector

if TYPE_CHECKING:
    from rich.console import Console

    from gpushare_runtime.kubectl_gpushare.cluster import Used
    from gpushare_runtime.kubectl_gpushare.output import Format
    from gpushare_runtime.kubectl_gpushare.views import Selection

PROGRAM: Final = "kubectl gpushare"
DRAIN_SECONDS: Final = 60
MARGIN_PERCENT: Final = 10
"""A request has so much more than was used: two readings do not see all, and frameworks allocate in parts."""
_MOST_MARGIN: Final = 1000
FAILED, USAGE, INTERRUPTED = 1, 2, 130
_LISTED: Final = 20
VIEWS: Final = {
    "nodes": "how much of which node is allocated, one line a node",
    "gpus": "how much of each GPU is allocated, with its state, one line a GPU",
    "pods": "which pod has how much of which GPU, and why the others wait",
    "top": "how much memory pods use, most first, and what they were allocated",
    "idle": "pods that keep none of their GPUs busy, since when, and the command that frees what they have",
    "namespaces": "sums by namespace",
    "models": "sums by model of GPU",
}
OTHERS: Final = {
    "status": "what is wrong with scheduler, nodes, GPUs and waiting pods, and what to do",
    "explain": "on which nodes a pod fits, why not on the others, and what would change that",
    "simulate": "dry run: where would these pods go, under each policy?",
    "cordon": "stop scheduling new pods on these GPUs; running pods stay",
    "uncordon": "schedule new pods on these GPUs again",
    "drain": "stop scheduling new pods on these GPUs, and evict the pods on them",
    "dashboard": "serve a web page that follows the cluster, for yourself alone",
}
COMMANDS: Final = (*VIEWS, *OTHERS)
ALIASES: Final = {
    "node": "nodes",
    "no": "nodes",
    "gpu": "gpus",
    "pod": "pods",
    "po": "pods",
    "namespace": "namespaces",
    "ns": "namespaces",
    "model": "models",
}
WITH_VALUE: Final = (
    "-o",
    "--output",
    "-n",
    "--namespace",
    "-l",
    "--selector",
    "--sort-by",
    "--kubeconfig",
    "--context",
    "--from-file",
    "-f",
    "--filename",
    "--port",
    "--prometheus",
    "--prometheus-token-file",
    "--node",
    "--gpu",
    "--timeout",
    "--set",
    "--kubernetes",
    "--margin",
)
OF_USE: Final = ("top", "idle")
"""The views that are about the use of GPUs."""
_NOUNS: Final = {"top": "pods", "idle": "idle pods"}
"""The objects of a view where its name is none."""
_OF_ONE_NAMESPACE: Final = ("pods", *OF_USE)
"""The views that show the context's namespace, without -n and -A."""
_USED_TOO_MUCH: Final = "Pods that have used too much: kubectl get events -A --field-selector reason=GPUShareMemoryExceeded"
EXAMPLES: Final = {
    "nodes": ("", "-o wide", "nodes gpu1 gpu2", "nodes -w"),
    "gpus": ("gpus", "gpus gpu1 -o wide"),
    "pods": ("pods", "pods -A --node gpu1 --gpu 0", "pods -n research --sort-by allocated --reverse"),
    "top": ("top -A", "top -A --watch --prometheus http://prometheus.monitoring:9090"),
    "idle": ("idle -A", "idle -n research"),
    "namespaces": ("namespaces", "namespaces --sort-by gib --reverse"),
    "models": ("models", "models -o json"),
    "status": ("status", "status -o json"),
    "explain": ("explain big", "explain -n research big -o wide", "explain -f pod.yaml", "explain -A"),
    "simulate": ("simulate -f deployment.yaml", "simulate -f deployment.yaml --policies binpack", "simulate --as-used -A --margin 20"),
    "cordon": ("cordon gpu1 3", "cordon gpu1 all"),
    "uncordon": ("uncordon gpu1 3",),
    "drain": ("drain gpu1 3 --dry-run", "drain gpu1 3 --timeout 300"),
    "dashboard": ("dashboard", "dashboard --port 8080 --no-browser"),
}
_USUAL: Final = "0 done; 1 the cluster could not be read, or has no such object; 2 wrong command line; 130 interrupted"
_STATUSES: Final = {
    "explain": "0 it fits, or has its GPUs; 1 the cluster could not be read, or nobody has tried the pod yet; 2 wrong command line;\n"
    "  3 it fits on no node, has ended, or requests no GPU",
    "simulate": "0 every pod has a place; 1 the cluster could not be read, or not all of it; 2 wrong command line; 3 a pod fits on no node",
    "status": "0 nothing is wrong; 1 the cluster could not be read; 2 wrong command line; 3 a row is an error",
    "cordon": "0 done; 1 the device plugin has not followed, or there is no such node or GPU; 2 wrong command line",
    "uncordon": "0 done; 1 the device plugin has not followed, or there is no such node or GPU; 2 wrong command line",
    "drain": "0 every pod is evicted, or --dry-run; 1 a pod stays; 2 wrong command line",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status, as in --help."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    collects = gc.isenabled()
    if arguments.command in VIEWS and not arguments.watch:
        # Millions of objects that stay until the end, and no cycles to find among them: a third of the time.
        gc.disable()
    try:
        return _show(arguments)
    except ModuleNotFoundError as error:
        # A GPU node's environment has the program, too.
        package = (error.name or "").partition(".")[0]
        if package not in ("rich", "kubernetes"):
            raise
        cure = "use the plugin of a control plane, or install gpushare-runtime[kubectl]"
        return _fail(f"the Python package `{package}` is not installed here; {cure}")
    except UsageError as error:
        return _fail(f"{error}", USAGE)
    except GpushareError as error:
        return _fail(f"{error}")
    except BrokenPipeError:
        # The reader, such as head, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if argv is None:
            # The process ends: Python would go through all of these objects once more before it frees them one by one.
            gc.freeze()
        if collects:
            gc.enable()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; SystemExit where it is none."""
    return _parser().parse_args(_command_first(list(argv)))


def _fail(text: str, status: int = FAILED) -> int:
    print(f"{PROGRAM}: {text}", file=sys.stderr)
    return status


def _command_first(argv: list[str]) -> list[str]:
    """As argparse wants it: `-o json pods` becomes `pods -o json`, no command at all `nodes`, and another word a node's name."""
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "--":
        if argv[at] in ("-h", "--help", "--version"):
            return argv
        at += 2 if argv[at] in WITH_VALUE else 1
    if at >= len(argv) or argv[at] == "--":
        return ["nodes", "--by-default", *argv]
    word = ALIASES.get(argv[at], argv[at])
    if word in ("help", "version"):
        return [f"--{word}"]
    if word not in COMMANDS:
        return ["nodes", "--instead-of-command", *argv]
    return [word, *argv[:at], *argv[at + 1 :]]


def options_of(command: str) -> list[str]:
    """The long options of a command, as its help lists them."""
    parser = argparse.ArgumentParser(prog="kubectl", add_help=False)
    _add_arguments(parser, command)
    words = parser.format_usage().replace("[", " ").replace("]", " ").split()
    short = {"-o": "--output", "-w": "--watch", "-l": "--selector", "-n": "--namespace", "-A": "--all-namespaces", "-f": "--filename"}
    return sorted({short.get(word, word) for word in words if word.startswith("-")})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show who has how much of which GPU. Without a command: nodes.",
        epilog=f"examples of a command, and its exit status: {PROGRAM} COMMAND --help\n"
        "Colours are used on a terminal only, and not where NO_COLOR is set.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kubectl-gpushare {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, text in {**VIEWS, **OTHERS}.items():
        shows = command in (*VIEWS, "status", "explain")
        sentence = f"Show {text}." if shows else f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"
        subparser = commands.add_parser(
            command, help=text, description=sentence, epilog=_epilog(command), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        _add_arguments(subparser, command)
    return parser


def _epilog(command: str) -> str:
    """Examples of a command, and its exit statuses."""
    examples = [f"  {PROGRAM} {example}".rstrip() for example in EXAMPLES[command]]
    return "\n".join(["examples:", *examples, "", "exit status:", f"  {_STATUSES.get(command, _USUAL)}"])


def _add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    if command in VIEWS:
        parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
        parser.add_argument("--by-default", action="store_true", help=argparse.SUPPRESS)
        parser.add_argument("--instead-of-command", action="store_true", help=argparse.SUPPRESS)
        if command in ("pods", "top", "idle"):
            parser.add_argument("--node", default="", metavar="NODE", help="only pods on this node")
            parser.add_argument("--gpu", default="", metavar="GPU", help="only pods on the GPU with this index or UUID")
        _add_view_options(parser)
        add_source_options(parser)
    elif command == "explain":
        parser.add_argument("pod", nargs="?", metavar="POD", help="a pod of the namespace")
        parser.add_argument(
            "-f", "--filename", default="", metavar="FILE", help="instead, a manifest with one pod; - is the standard input"
        )
        parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default="table", help="default: table")
        parser.add_argument("--no-headers", action="store_true", help="rows only")
        add_source_options(parser)
    elif command == "status":
        parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")
        parser.add_argument("--no-headers", action="store_true", help="rows only")
        add_source_options(parser, scope=False)
    elif command == "simulate":
        parser.add_argument(
            "-f", "--filename", default="", metavar="FILE", help="manifests of pods; replicas are counted; - is the standard input"
        )
        parser.add_argument("--trace", default="", metavar="FILE", help="pods of a trace instead, as openb_pod_list_default.csv")
        parser.add_argument("--trace-nodes", default="", metavar="FILE", help="nodes of the trace, as openb_node_list_gpu_node.csv")
        parser.add_argument(
            "--as-used", action="store_true", help="instead: what pods of the cluster would need if they requested what they use"
        )
        parser.add_argument("--margin", type=_margin, default=MARGIN_PERCENT, metavar="PERCENT",
                            help=f"with --as-used: request so much more than was used; default: {MARGIN_PERCENT}")  # fmt: skip
        _add_prometheus(parser)
        parser.add_argument(
            "--policies", nargs="+", choices=PLACEMENTS, default=PLACEMENTS, metavar="POLICY", help=f"default: {' '.join(PLACEMENTS)}"
        )
        parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default="table", help="default: table")
        parser.add_argument("--no-headers", action="store_true", help="rows only")
        add_source_options(parser)
    elif command == "dashboard":
        parser.add_argument("--port", type=_port, default=0, metavar="PORT", help="of 127.0.0.1; default: one that is free")
        parser.add_argument("--no-browser", action="store_true", help="print the address only, and open no browser")
        parser.add_argument(
            "--prometheus",
            default="",
            metavar="URL",
            help="where history and memory in use come from; default: what was seen since the start",
        )
        add_source_options(parser, scope=False)
        parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help="whose pods, if you may not list all; default: the context's")
    else:
        parser.add_argument("node", metavar="NODE", help="name of the node")
        parser.add_argument("gpus", nargs="+", metavar="GPU", help="index or UUID of a GPU, or all")
        if command == "drain":
            parser.add_argument("--dry-run", action="store_true", help="cordon and evict nothing, and print what would be")
            parser.add_argument("--force", action="store_true", help="evict also pods without an owner that would start them again")
            parser.add_argument("--timeout", type=_seconds, default=DRAIN_SECONDS, metavar="SECONDS",
                                help=f"how long to wait for disruption budgets; default: {DRAIN_SECONDS}")  # fmt: skip
        _add_cluster_options(parser)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"found {text[:80]!r}; expected a port from 0 to 65535")
    return int(text)


def _margin(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= _MOST_MARGIN):
        raise argparse.ArgumentTypeError(f"found {text[:80]!r}; expected percent from 0 to {_MOST_MARGIN}")
    return int(text)


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= 86400):
        raise argparse.ArgumentTypeError(f"found {text[:80]!r}; expected seconds from 0 to 86400")
    return int(text)


def _add_view_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml", "name"), default="table", help="default: table")
    parser.add_argument("-w", "--watch", action="store_true", help="continue, and show each change")
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help="only objects with these labels: of nodes, or of pods")
    _add_prometheus(parser)
    parser.add_argument("--sort-by", default="", metavar="COLUMN", help="sort the rows by this column")
    parser.add_argument("--reverse", action="store_true", help="in reverse order")
    parser.add_argument("--no-headers", action="store_true", help="rows only")


def _add_prometheus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prometheus", default=os.environ.get("GPUSHARE_PROMETHEUS", ""), metavar="URL",
                        help="where memory in use comes from; default: the variable GPUSHARE_PROMETHEUS, then the installer's")  # fmt: skip
    parser.add_argument("--prometheus-token-file", default="", metavar="FILE", help="bearer token for it")
    parser.set_defaults(prometheus_by_installer=False)


def add_source_options(parser: argparse.ArgumentParser, *, scope: bool = True) -> None:
    """Where nodes and pods come from. scope: whether one chooses whose pods."""
    if scope:
        group = parser.add_mutually_exclusive_group()
        group.add_argument("-n", "--namespace", metavar="NAMESPACE", help="whose pods; default: the context's")
        group.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces")
    _add_cluster_options(parser)
    parser.add_argument("--from-file", action="append", default=[], metavar="FILE",
                        help="instead of a cluster: output of `kubectl get nodes,pods -A -o json`; - is the standard input")  # fmt: skip


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", help=KUBECONFIG_HELP)
    parser.add_argument("--context", metavar="NAME", help="default: the kubeconfig's current-context")


def _show(arguments: argparse.Namespace) -> int:
    # Only here: GPU nodes have no rich.
    from rich.console import Console

    from gpushare_runtime.kubectl_gpushare.output import Format

    console, view = Console(), arguments.command
    if view in ("cordon", "uncordon"):
        from gpushare_runtime.kubectl_gpushare.commands import run_cordon

        return run_cordon(arguments)
    if view == "drain":
        from gpushare_runtime.kubectl_gpushare.commands import run_drain

        return run_drain(arguments)
    if view == "dashboard":
        from gpushare_runtime.dashboard import local

        return local.run(arguments)
    form = Format(
        arguments.output,
        headers=not arguments.no_headers,
        width=console.width if console.is_terminal else None,
        colours=console.is_terminal and not console.no_color and console.color_system is not None,
        blocks=console.is_terminal and console.encoding.startswith("utf"),
    )
    if view in ("explain", "simulate", "status"):
        from gpushare_runtime.kubectl_gpushare.commands import run_explain, run_simulate, run_status

        return {"explain": run_explain, "simulate": run_simulate, "status": run_status}[view](arguments, form)
    form = replace(form, sort_by=arguments.sort_by, reverse=arguments.reverse)
    labels = parse_selector(arguments.selector)
    if arguments.from_file:
        if arguments.watch:
            return _fail("found --watch with --from-file; a file does not change, so leave one of them out", USAGE)
        cluster = Cluster()
        fill_from_files(cluster, arguments.from_file)
        asyncio.run(_add_used(cluster, arguments, _reader(cluster, arguments)))
        namespace = arguments.namespace or ("" if view not in _OF_ONE_NAMESPACE or arguments.all_namespaces else "default")
        _print(cluster, view, _selection(arguments, namespace, labels), form, arguments.instead_of_command)
    else:
        asyncio.run(_show_cluster(arguments, form, labels, console))
    return 0


def _selection(arguments: argparse.Namespace, namespace: str, labels: Callable[[Labels], bool]) -> Selection:
    from gpushare_runtime.kubectl_gpushare.views import Selection

    node, gpu = getattr(arguments, "node", ""), getattr(arguments, "gpu", "")
    return Selection(frozenset(arguments.names), namespace, labels, node, gpu)


async def _show_cluster(arguments: argparse.Namespace, form: Format, labels: Callable[[Labels], bool], console: Console) -> None:
    from gpushare_runtime.kubectl_gpushare.live import follow
    from gpushare_runtime.kubectl_gpushare.views import OF_PODS

    view, cluster = arguments.command, Cluster()
    file = find_kubeconfig(arguments.kubeconfig)
    credentials = load_kubeconfig(file, context=arguments.context)
    own = arguments.namespace or context_namespace(file, arguments.context)
    wanted = own if (view in _OF_ONE_NAMESPACE and not arguments.all_namespaces) or (view == "namespaces" and arguments.namespace) else ""
    async with KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS) as client:
        try:
            read = await fill(client, cluster, wanted, own)
        except KubeError as error:
            raise InputError(explain_error(error, credentials.server, f"pods in namespace {own} (-n names another)")) from None
        if not cluster.complete and view not in OF_PODS:
            if not arguments.by_default:
                need_all(cluster, f"{PROGRAM} {view}", f"{PROGRAM} pods")
            view, read = "pods", read or own
        select = _selection(arguments, read if view in OF_PODS else "", labels)
        await _find_prometheus(client, arguments)
        used = _reader(cluster, arguments)
        if not arguments.watch:
            await _add_used(cluster, arguments, used)
            _print(cluster, view, select, form, arguments.instead_of_command)
            return
        _warn(cluster)
        await _add_used(cluster, arguments, used)
        await follow(client, cluster, read, view, select, form, console, used)


async def _find_prometheus(client: KubeClient, arguments: argparse.Namespace) -> None:
    """From the ConfigMap that the installer writes, where neither an option nor the environment has it, for the view that needs it."""
    if arguments.prometheus or arguments.command not in OF_USE:
        return
    from gpushare_runtime.kubectl_gpushare.used import find_address

    arguments.prometheus, arguments.prometheus_by_installer = await find_address(client), True


def _reader(cluster: Cluster, arguments: argparse.Namespace) -> Callable[[], Awaitable[Used]]:
    """From Prometheus; without one, and where that of the installation is away, what nodes publish."""
    from gpushare_runtime.kubectl_gpushare.errors import PrometheusError
    from gpushare_runtime.kubectl_gpushare.used import instead_of, published, read_used

    async def read() -> Used:
        if not arguments.prometheus:
            return published(cluster)
        try:
            return await read_used(arguments.prometheus, arguments.prometheus_token_file)
        except PrometheusError as error:
            said = instead_of(error, cluster, arguments.prometheus_by_installer)
        # The screen of --watch has no place for it twice.
        if said not in warned:
            warned.add(said)
            print(said, file=sys.stderr)
        return published(cluster)

    warned = set[str]()
    return read


async def _add_used(cluster: Cluster, arguments: argparse.Namespace, read: Callable[[], Awaitable[Used]]) -> None:
    from gpushare_runtime.kubectl_gpushare.used import NOBODY_KNOWS

    # Of the use that nodes publish every view has something, and it costs nothing to read.
    cluster.used = await read()
    if not arguments.prometheus and arguments.command in OF_USE and not cluster.uses:
        print(f"warning: {NOBODY_KNOWS}. {_USED_TOO_MUCH}", file=sys.stderr)


def _print(cluster: Cluster, view: str, select: Selection, form: Format, instead: bool) -> None:
    """instead: whether the first name stands in the place of a command."""
    from gpushare_runtime.kubectl_gpushare.output import render
    from gpushare_runtime.kubectl_gpushare.views import names_of, shows_any

    known = names_of(cluster, view, select) if select.names else set()
    missing = sorted(set(select.names) - known)
    if missing:
        there = ", ".join(sorted(known)[:_LISTED]) or "none"
        what = _NOUNS.get(view, view)[:-1]
        found = f"found no {what} {missing[0][:80]!r} with shared GPUs{_within(select)}; there are: {there[:400]}"
        if instead:
            meant = get_close_matches(missing[0], COMMANDS, 1)
            commands = f"; did you mean {meant[0]}?" if meant else f", which are: {', '.join(COMMANDS)}"
            raise UsageError(f"{found}. And it is not a command{commands}")
        raise InputError(found)
    _warn(cluster)
    text = render(cluster, view, select, form)
    if form.name not in ("json", "yaml") and not shows_any(cluster, view, select):
        print(f"no {_NOUNS.get(view, view)} with shared GPUs found{_within(select)}", file=sys.stderr)
    sys.stdout.write(text)
    sys.stdout.flush()


def _within(select: Selection) -> str:
    return f" in namespace {select.namespace[:80]}" if select.namespace else ""


def _warn(cluster: Cluster) -> None:
    problems = cluster.problems()
    for problem in problems[:_LISTED]:
        print(f"warning: {as_text(problem)}", file=sys.stderr)
    if len(problems) > _LISTED:
        print(f"warning: {len(problems) - _LISTED} more; `{PROGRAM} -o json` lists all", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
