"""`hubctl sandbox`: clusters in the background, found again and ended by their state folder."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from hub.cli import sandbox
from hub.cli.config import ConfigError

SPEC = "clusters:\n  - {name: tiny, nodes: [{name: n, count: 1, gpus: 1}]}\n"


def test_up_status_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    options = Namespace(state=str(tmp_path / "state"), filename=str(spec))
    assert sandbox.status(options) == 3
    assert sandbox.up(options) == 0
    try:
        told = capsys.readouterr().out
        cluster = json.loads((tmp_path / "state" / "fleet.json").read_text())["clusters"][0]
        assert f"kubectl --kubeconfig {cluster['kubeconfig']}" in told
        assert Path(cluster["kubeconfig"]).stat().st_mode & 0o077 == 0, "nobody else may read it"
        with pytest.raises(ConfigError, match="is up already"):
            sandbox.up(options)
    finally:
        assert sandbox.down(options) == 0
    assert sandbox.status(options) == 3
    assert sandbox.down(options) == 0, "ending it twice does no harm"


def test_a_spec_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        sandbox.up(Namespace(state=str(tmp_path), filename="nowhere.yaml"))
