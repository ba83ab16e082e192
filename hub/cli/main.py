"""hubctl, also `kubectl hub`: register worker clusters, submit work, see capacity and the reason for every wait.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused (who you are, what you may, what you sent),
5 the hub does not answer.
"""

import sys
import time
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from hub.cli import commands
from hub.cli.config import ConfigError
from hub.cli.http import HubError

Subcommands = Any  # argparse has no public name for it


def parser() -> ArgumentParser:
    top = ArgumentParser(
        prog=_program(), description=__doc__, formatter_class=RawDescriptionHelpFormatter, parents=[_common(None)]
    )
    # Given after the command, an option wins; not given there, it must not wipe out the one given before.
    common = _common(SUPPRESS)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    _clusters(verbs, common)
    _sending(verbs, common)
    _seeing(verbs, common)
    _sandbox(verbs)
    completion = verbs.add_parser("completion", help="print a completion script")
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=lambda options: _completion(options.shell))
    verbs.add_parser("version", help="versions of hubctl and of the hub", parents=[common]).set_defaults(
        run=commands.version
    )
    return top


def _program() -> str:
    return "kubectl hub" if Path(sys.argv[0]).name == "kubectl-hub" else "hubctl"


def _common(default: Any) -> ArgumentParser:
    common = ArgumentParser(add_help=False, argument_default=default)
    place = common.add_argument_group("where the hub is")
    place.add_argument("--server", metavar="URL", help="address of the hub [HUBCTL_SERVER]")
    place.add_argument(
        "--token-file", metavar="FILE", help="bearer token of the management cluster [HUBCTL_TOKEN_FILE]"
    )
    place.add_argument("--ca-file", metavar="FILE", help="CA of the hub's certificate [HUBCTL_CA_FILE]")
    place.add_argument("--context", metavar="NAME", help="context of the configuration file")
    return common


def _output(parents: list[ArgumentParser], *, watch: bool = True) -> list[ArgumentParser]:
    output = ArgumentParser(add_help=False)
    output.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml", "name"), default="table")
    output.add_argument("--no-headers", action="store_true", help="only the rows")
    if watch:
        output.add_argument("-w", "--watch", action="store_true", help="print again whenever something changed")
    return [*parents, output]


def _namespace(command: ArgumentParser) -> None:
    command.add_argument("-n", "--namespace", default="", help="namespace of the workload")
    command.add_argument("-A", "--all-namespaces", action="store_true", help=SUPPRESS)


def _clusters(verbs: Subcommands, common: ArgumentParser) -> None:
    group = verbs.add_parser("clusters", aliases=["cluster"], help="worker clusters").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    register = group.add_parser("register", help="invite a cluster: prints the manifest of its agent", parents=[common])
    register.add_argument("name")
    register.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the cluster")
    register.add_argument("--expires-in", type=int, default=3600, metavar="SECONDS", help="life of the join token")
    register.add_argument("--again", action="store_true", help="a new token for a cluster that is known")
    register.add_argument("-o", "--output", choices=("manifest", "env", "json"), default="manifest")
    register.set_defaults(run=commands.register)
    listed = group.add_parser("list", help="clusters with their GPUs", parents=_output([common]))
    listed.set_defaults(run=commands.get_clusters)
    show = group.add_parser("show", help="one cluster in detail", parents=_output([common], watch=False))
    show.add_argument("name")
    show.set_defaults(run=commands.show_cluster)
    for action, text in (("cordon", "no new work there"), ("uncordon", "new work again")):
        command = group.add_parser(action, help=text, parents=[common])
        command.add_argument("name")
        command.set_defaults(run=commands.cluster_action)
    remove = group.add_parser("remove", help="forget a cluster on which nothing of ours is left", parents=[common])
    remove.add_argument("name")
    remove.add_argument("--force", action="store_true", help="withdraw what runs there first")
    remove.set_defaults(run=commands.remove_cluster)


def _sending(verbs: Subcommands, common: ArgumentParser) -> None:
    for verb, text in (("apply", "create or change objects"), ("submit", "create jobs")):
        command = verbs.add_parser(verb, help=f"{text} on the management cluster", parents=[common])
        command.add_argument(
            "-f", "--filename", action="append", required=True, metavar="FILE", help="a file; - is standard input"
        )
        command.add_argument("-n", "--namespace", default="", help="for documents that name none")
        command.add_argument("--dry-run", action="store_true", help="check only")
        command.set_defaults(run=commands.send)


def _seeing(verbs: Subcommands, common: ArgumentParser) -> None:
    get = verbs.add_parser("get", help="workloads, queues, clusters").add_subparsers(
        dest="what", required=True, metavar="WHAT"
    )
    workloads = get.add_parser(
        "workloads", aliases=["workload", "wl"], help="where each is and why", parents=_output([common])
    )
    _namespace(workloads)
    workloads.add_argument("--queue", help="only of this LocalQueue")
    workloads.add_argument("--cluster", help="only on this cluster")
    workloads.add_argument("--state", help="only in this state, e.g. Pending")
    workloads.set_defaults(run=commands.get_workloads)
    queues = get.add_parser(
        "queues", aliases=["queue", "clusterqueues", "cq"], help="queues and what they use", parents=_output([common])
    )
    _namespace(queues)
    queues.set_defaults(run=commands.get_queues)
    clusters = get.add_parser("clusters", aliases=["cluster"], help="as `clusters list`", parents=_output([common]))
    clusters.set_defaults(run=commands.get_clusters)
    capacity = verbs.add_parser(
        "capacity", help="what is free where, and how old the figures are", parents=_output([common])
    )
    capacity.add_argument("--flavor", help="only this flavor")
    capacity.add_argument("--cluster", help="only this cluster")
    capacity.add_argument("--all-resources", action="store_true", help="cpu and memory too, not only GPUs")
    capacity.set_defaults(run=commands.capacity)
    for verb, text, run in (
        ("why", "why a workload waits, or why it is where it is", commands.why),
        ("history", "everything that happened to a workload", commands.history),
    ):
        command = verbs.add_parser(verb, help=text, parents=_output([common]))
        command.add_argument("workload", metavar="[NAMESPACE/]WORKLOAD", help="name of the workload or of its job")
        _namespace(command)
        command.set_defaults(run=run)


def _sandbox(verbs: Subcommands) -> None:
    from hub.cli import sandbox

    group = verbs.add_parser("sandbox", help="simulated clusters on this machine").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    up = group.add_parser("up", help="start them in the background")
    up.add_argument(
        "-f", "--filename", metavar="SPEC", help="which clusters; by default a management cluster and three workers"
    )
    for command, run in (
        (up, sandbox.up),
        (group.add_parser("down", help="stop them"), sandbox.down),
        (group.add_parser("status", help="are they up, and where"), sandbox.status),
    ):
        command.add_argument("--state", metavar="DIR", default="", help="folder of their kubeconfigs and logs")
        command.set_defaults(run=run)


def _completion(shell: str) -> int:
    import shtab

    print(shtab.complete(parser(), shell=shell))
    return 0


def main() -> None:
    options = parser().parse_args()
    options.now = time.time
    sys.exit(run(options))


def run(options: Namespace) -> int:
    try:
        return options.run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except HubError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    main()
