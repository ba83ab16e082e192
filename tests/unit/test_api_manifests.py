"""Manifests as people write them, of every kind: they decode, and come back with nothing lost."""

from pathlib import Path

import pytest
import yaml

from hub.kueue.api import core
from hub.kueue.api.v1beta2 import KINDS, decode, encode

FOLDER = Path(__file__).parent / "manifests"
MANIFESTS = [doc for path in sorted(FOLDER.glob("*.yaml")) for doc in yaml.safe_load_all(path.read_text())]


def lost(written, decoded, path=""):
    """Paths that are in `written` and neither in `decoded` nor known to be a default."""
    if isinstance(written, dict) and isinstance(decoded, dict):
        for key, value in written.items():
            if key in decoded:
                yield from lost(value, decoded[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}={value}"
    elif isinstance(written, list) and isinstance(decoded, list):
        for index, (a, b) in enumerate(zip(written, decoded, strict=True)):
            yield from lost(a, b, f"{path}[{index}]")
    elif written != decoded:
        yield f"{path}: {written!r} != {decoded!r}"


def test_every_kind_is_represented():
    assert {manifest["kind"] for manifest in MANIFESTS} == set(KINDS)


#: Spelled out in the files though they are what an absent field means.
DEFAULTS = {
    ".spec.stopPolicy=None",
    ".spec.flavorFungibility.whenCanPreempt=TryNextFlavor",
    ".spec.podSets[0].count=1",
    ".spec.clusterSource.kubeConfig.locationType=Secret",
}


@pytest.mark.parametrize("manifest", [pytest.param(m, id=f"{m['kind']} {m['metadata']['name']}") for m in MANIFESTS])
def test_a_round_trip_loses_nothing(manifest):
    again = encode(decode(manifest))
    assert set(lost(manifest, again)) <= DEFAULTS
    assert encode(decode(again)) == again


def test_templates_are_read():
    [everything] = [decode(m) for m in MANIFESTS if m["metadata"]["name"] == "everything"]
    templates = {p.name: core.pod_template(p.template).spec for p in everything.spec.pod_sets}
    # The fetcher needs 2 cores beside the proxy, more than the container does; the sandbox's overhead comes on top.
    want_driver = {"cpu": 2350, "memory": 2**30 + 2**26, "nvidia.com/gpu": 1}
    assert core.pod_requests(templates["driver"]) == want_driver
    assert core.pod_requests(templates["workers"]) == {"cpu": 8000, "nvidia.com/gpu": 8}
    assert core.fits_node_labels(templates["workers"], {"example.com/gpu": "h100", "example.com/gen": "4"})
    assert not core.fits_node_labels(templates["workers"], {"example.com/gpu": "h100", "example.com/gen": "3"})
