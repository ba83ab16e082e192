"""hubctl without a hub: what it prints, how it fails, where it looks for the hub."""

import http.server
import json
import os
import threading
from argparse import Namespace
from collections.abc import Iterator

import pytest

from hub.cli import main, render
from hub.cli.config import ConfigError, hub_from
from hub.cli.render import Column

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("age_s", "want"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (600, "10m"),
        (7200, "120m"),
        (10_800, "3h"),
        (200_000, "2d"),
    ],
)
def test_ages_read_as_kubectl_writes_them(age_s: float, want: str):
    assert render.seconds(age_s) == want


@pytest.mark.parametrize(
    ("resource", "value", "want"),
    [
        pytest.param("cpu", 2500, "2500m", id="a broken cpu in milli"),
        pytest.param("cpu", 4000, "4", id="a whole cpu as a number"),
        pytest.param("memory", 64 * 1024**3, "64Gi", id="bytes have a suffix"),
        pytest.param("nvidia.com/gpu", 8, "8", id="pieces are pieces"),
        pytest.param("nvidia.com/gpu", None, "-", id="unknown is a dash"),
    ],
)
def test_amounts(resource: str, value: int | None, want: str):
    assert render.amount(resource, value) == want


def test_columns_line_up_and_numbers_stand_to_the_right():
    rows = [{"name": "a", "gpus": 8}, {"name": "longer", "gpus": 128}]
    columns = [
        Column("NAME", render.field("name")),
        Column("GPUS", render.field("gpus"), right=True),
        Column("X", render.field("x", "-"), wide=True),
    ]
    assert render.table(rows, columns).splitlines() == ["NAME     GPUS", "a           8", "longer    128"]
    assert render.table(rows, columns, wide=True, headers=False).splitlines() == [
        "a          8   -",
        "longer   128   -",
    ]


def test_why_says_the_sentence_first_and_then_the_verdict_on_each_cluster():
    answer = {
        "sentence": "It waits because no cluster has 16 free H100 on one node.",
        "position": 2,
        "decision": {
            "at": "2026-01-01T00:00:00Z",
            "clusters": [
                {"cluster": "east", "verdict": "refused", "score": None, "reasons": ["largest hole is 8"]},
                {"cluster": "west", "verdict": "chosen", "score": 1.5, "reasons": []},
            ],
        },
    }
    assert render.why(answer).splitlines() == [
        "It waits because no cluster has 16 free H100 on one node.",
        "Position in its queue: 2",
        "",
        "Clusters considered 2026-01-01T00:00:00Z:",
        "  CLUSTER   VERDICT   SCORE   BECAUSE",
        "  east      refused       -   largest hole is 8",
        "  west      chosen     1.50   -",
    ]


def test_a_stale_cluster_says_so():
    row = {"name": "east", "state": "Suspect", "ageS": 400.0, "stale": True, "createdAt": None}
    assert "6m40s (stale)" in render.table([row], render.clusters(NOW))


def options(**given: object) -> Namespace:
    return Namespace(**{"server": None, "token_file": None, "ca_file": None, "context": None} | given)


def test_an_option_beats_the_environment_and_the_environment_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("current: a\ncontexts: {a: {server: 'http://file'}}\n")
    environment = {"HUBCTL_CONFIG": str(file)}
    assert hub_from(options(), environment).server == "http://file"
    assert hub_from(options(), environment | {"HUBCTL_SERVER": "http://env"}).server == "http://env"
    assert (
        hub_from(options(server="http://given"), environment | {"HUBCTL_SERVER": "http://env"}).server == "http://given"
    )


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param({}, "where is the hub", id="nothing says where"),
        pytest.param({"server": "hub.example.com"}, "must begin with http", id="an address without a scheme"),
        pytest.param(
            {"server": "http://x", "token_file": "/no/such"}, "token file /no/such", id="a token file that is not there"
        ),
        pytest.param({"context": "prod"}, "--context prod", id="a context without a file"),
    ],
)
def test_a_wrong_configuration_names_what_is_wrong(tmp_path, given: dict[str, object], want: str):
    with pytest.raises(ConfigError, match=want):
        hub_from(options(**given), {"HUBCTL_CONFIG": str(tmp_path / "none.yaml")})


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers with what the test put there."""

    status, body = 200, {}

    def do_GET(self) -> None:
        data = json.dumps(self.body).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815 - the base class names it

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch) -> Iterator[type[Hub]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setitem(os.environ, "HUBCTL_SERVER", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setitem(os.environ, "HUBCTL_CONFIG", "/nonexistent")
    yield Hub
    server.shutdown()
    server.server_close()


def hubctl(*words: str) -> int:
    given = main.parser().parse_args(words)
    given.now = lambda: NOW
    return main.run(given)


@pytest.mark.parametrize(
    ("status", "problem", "want_exit", "want_words"),
    [
        pytest.param(404, {"detail": "no workload ns/x"}, 3, "no workload ns/x", id="not found"),
        pytest.param(401, {"detail": "who are you"}, 4, "--token-file", id="unauthorized says how to give a token"),
        pytest.param(403, {"detail": "you may not"}, 4, "you may not", id="forbidden"),
        pytest.param(
            422,
            {"detail": "bad", "errors": [{"field": "name", "message": "is required"}]},
            4,
            "name: is required",
            id="the field is named",
        ),
        pytest.param(500, {}, 1, "500", id="anything else"),
    ],
)
def test_exit_codes(hub: type[Hub], capsys, status: int, problem: dict, want_exit: int, want_words: str):
    hub.status, hub.body = status, problem
    assert hubctl("get", "workloads") == want_exit
    assert want_words in capsys.readouterr().err


def test_a_hub_that_does_not_answer_is_exit_code_5(capsys):
    assert hubctl("--server", "http://127.0.0.1:9", "get", "clusters") == 5
    assert "Is it running?" in capsys.readouterr().err


def test_clusters_as_names_and_as_json(hub: type[Hub], capsys):
    hub.status, hub.body = 200, {"items": [{"name": "east", "state": "Active"}]}
    assert hubctl("clusters", "list", "-o", "name") == 0
    assert capsys.readouterr().out == "east\n"
    assert hubctl("clusters", "list", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["state"] == "Active"


def test_ages_are_those_of_the_moment_of_printing(hub: type[Hub], capsys):
    given = main.parser().parse_args(["clusters", "list"])
    given.now = iter([NOW, NOW + 60.0]).__next__
    hub.status, hub.body = 200, {"items": [{"name": "east", "state": "Active", "createdAt": "2026-09-21T14:13:20Z"}]}
    main.run(given)
    first = capsys.readouterr().out
    main.run(given)
    assert (" 0s" in first, " 60s" in capsys.readouterr().out) == (True, True)


def test_nothing_registered_says_how_to_begin(hub: type[Hub], capsys):
    hub.status, hub.body = 200, {"items": []}
    hubctl("clusters", "list")
    assert "hubctl clusters register NAME" in capsys.readouterr().out


def test_a_refused_document_ends_with_4_and_names_its_field(hub: type[Hub], capsys, tmp_path):
    manifest = tmp_path / "job.yaml"
    manifest.write_text("kind: Job")
    refused = {
        "index": 0,
        "kind": "Job",
        "name": "x",
        "result": "refused",
        "errors": [{"field": "spec", "message": "is required"}],
    }
    hub.status, hub.body = 200, {"results": [refused]}
    assert hubctl("apply", "-f", str(manifest)) == 4
    assert "job/x refused\n  spec: is required" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_know_every_command(shell: str, capsys):
    assert hubctl("completion", shell) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in ("clusters", "capacity", "history", "sandbox"))
