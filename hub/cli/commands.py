"""What each command asks the hub and how it shows the answer. Every command returns its exit code."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hub.cli import render
from hub.cli.config import ConfigError, hub_from
from hub.cli.http import Hub, RefusedError
from hub.cli.render import Column, Row

CLEAR = "\x1b[H\x1b[2J"


def _hub(options: Namespace) -> Hub:
    return hub_from(options, os.environ)


# --- showing ---------------------------------------------------------------------------------------------------------


def _show(options: Namespace, load: Callable[[], Any], text: Callable[[Any], str], topics: str) -> int:
    """Print once, or with --watch whenever one of these topics changed."""
    _print(options, load(), text)
    if not getattr(options, "watch", False):
        return 0
    hub = _hub(options)
    while True:
        for _ in hub.events(topics):
            if sys.stdout.isatty():
                print(CLEAR, end="")
            _print(options, load(), text)


def _print(options: Namespace, answer: Any, text: Callable[[Any], str]) -> None:
    if options.output in ("json", "yaml"):
        print(render.document(answer, options.output))
    elif options.output == "name":
        print("\n".join(_name(row) for row in answer.get("items", [answer])))
    else:
        print(text(answer))
    sys.stdout.flush()


def _name(row: Row) -> str:
    name = row.get("name") or row.get("cluster") or ""
    return f"{row['namespace']}/{name}" if row.get("namespace") else str(name)


def _rows(options: Namespace, columns: Callable[[float], Sequence[Column]], nothing: str) -> Callable[[Any], str]:
    """Columns are made for the moment of printing: with --watch, ages grow."""

    def text(answer: Any) -> str:
        rows = answer["items"]
        if not rows:
            return nothing
        return render.table(rows, columns(options.now()), wide=options.output == "wide", headers=not options.no_headers)

    return text


# --- clusters --------------------------------------------------------------------------------------------------------


def register(options: Namespace) -> int:
    labels = dict(_label(text) for text in options.label)
    hub = _hub(options)
    if options.again:
        answer = hub.post(f"/api/v1/clusters/{quote(options.name)}/token", {"expiresInS": options.expires_in})
    else:
        answer = hub.post(
            "/api/v1/clusters", {"name": options.name, "labels": labels, "expiresInS": options.expires_in}
        )
    if options.output == "json":
        print(render.document(answer, "json"))
    elif options.output == "env":
        print("\n".join(f"{key}={value}" for key, value in answer["environment"].items()))
    else:
        print(answer["manifest"])
    print(
        f"cluster {options.name} is invited until {answer['expiresAt']}. Apply the above on it: "
        f"hubctl clusters register {options.name} --again | kubectl --context {options.name} apply -f -",
        file=sys.stderr,
    )
    return 0


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--label {text!r}: must be KEY=VALUE")
    return key, value


def get_clusters(options: Namespace) -> int:
    text = _rows(options, render.clusters, "No clusters are registered. Begin with: hubctl clusters register NAME")
    return _show(options, lambda: _hub(options).get("/api/v1/clusters"), text, "cluster")


def show_cluster(options: Namespace) -> int:
    answer = _hub(options).get(f"/api/v1/clusters/{quote(options.name)}")

    def text(cluster: Any) -> str:
        summary = render.table([cluster], render.clusters(options.now()), wide=True)
        rows = [
            {
                "cluster": cluster["name"],
                "flavor": f["name"],
                "resource": name,
                **amounts,
                "nodes": f["nodes"],
                "nodesReady": f["nodesReady"],
                "ageS": cluster["ageS"],
                "stale": cluster["stale"],
            }
            for f in cluster.get("flavors") or []
            for name, amounts in f["resources"].items()
        ]
        return f"{summary}\n\n{render.table(rows, render.CAPACITY)}"

    _print(options, answer, text)
    return 0


def cluster_action(options: Namespace) -> int:
    answer = _hub(options).post(f"/api/v1/clusters/{quote(options.name)}/{options.action}")
    print(f"cluster/{answer['name']} {options.action}ed, its state is {answer['state']}")
    return 0


def remove_cluster(options: Namespace) -> int:
    answer = _hub(options).delete(f"/api/v1/clusters/{quote(options.name)}", force="true" if options.force else None)
    print(f"cluster/{options.name} removed" + (f": {answer['message']}" if answer and answer.get("message") else ""))
    return 0


# --- sending ---------------------------------------------------------------------------------------------------------


def send(options: Namespace) -> int:
    """`apply` and `submit`: each file goes as it is; the hub checks every document before it touches anything."""
    hub = _hub(options)
    refused = False
    for name in options.filename:
        answer = hub.post(
            f"/api/v1/{options.verb}",
            _manifest(name),
            content_type="application/yaml",
            namespace=options.namespace,
            dryRun="true" if options.dry_run else None,
        )
        for result in answer["results"]:
            print("\n".join(render.applied(result)))
            refused |= result["result"] == "refused"
    if refused:
        raise RefusedError("some documents were refused, see above")
    return 0


def _manifest(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except OSError as error:
        raise ConfigError(f"-f {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"-f {name}: is not text") from None


# --- seeing ----------------------------------------------------------------------------------------------------------


def get_workloads(options: Namespace) -> int:
    def load() -> Any:
        return _all_pages(
            _hub(options),
            "/api/v1/workloads",
            namespace=options.namespace,
            queue=options.queue,
            cluster=options.cluster,
            state=options.state,
        )

    text = _rows(options, render.workloads, "No workloads found.")
    return _show(options, load, text, "workload,placement")


def _all_pages(hub: Hub, path: str, **query: str | None) -> Any:
    items: list[Any] = []
    token: str | None = None
    while True:
        page = hub.get(path, **query, **{"continue": token})
        items += page["items"]
        token = page.get("continue")
        if not token:
            return {"items": items}


def get_queues(options: Namespace) -> int:
    text = _rows(options, render.queues, "No queues found.")
    return _show(options, lambda: _hub(options).get("/api/v1/queues", namespace=options.namespace), text, "queue")


def capacity(options: Namespace) -> int:
    def load() -> Any:
        answer = _hub(options).get("/api/v1/capacity", flavor=options.flavor, cluster=options.cluster)
        if not options.all_resources:
            answer["items"] = [row for row in answer["items"] if "/" in row["resource"]]
        return answer

    text = _rows(options, lambda now: render.CAPACITY, "No capacity is known yet: no cluster has answered.")
    return _show(options, load, text, "cluster,placement")


def why(options: Namespace) -> int:
    path = _workload_path(options, "why")
    return _show(options, lambda: _hub(options).get(path), render.why, "workload,placement")


def history(options: Namespace) -> int:
    path = _workload_path(options, "history")
    text = _rows(options, render.history, "Nothing happened to it yet.")
    return _show(options, lambda: _hub(options).get(path), text, "history,placement")


def _workload_path(options: Namespace, what: str) -> str:
    namespace, _, name = options.workload.rpartition("/")
    namespace = namespace or options.namespace or "default"
    return f"/api/v1/workloads/{quote(namespace)}/{quote(name)}/{what}"


def version(options: Namespace) -> int:
    try:
        ours = version_of("multikueue-hub")
    except PackageNotFoundError:
        ours = "from a checkout"
    print(f"hubctl {ours}")
    try:
        print(f"hub    {_hub(options).get('/api/v1/status')['version']}")
    except ConfigError:
        print("hub    not configured")
    return 0
