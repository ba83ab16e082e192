"""What a newcomer does with the demo: kubectl, hubctl and a browser, on one demo that stays up until it is told to end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.demo_process import ROOT, Demo, running_demo

KUBECTL = ROOT / ".tools" / "kubectl"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with running_demo(tmp_path_factory.mktemp("user") / "demo", "--stay") as demo:
        demo.until("everything stays up")
        yield demo


@pytest.fixture(scope="module")
def address(demo: Demo) -> tuple[str, str]:
    """The hub's address and the token that the demo printed."""
    found = re.search(r"(http://\S+)/sign-in\?token=(\S+)", demo.text)
    assert found is not None
    return found[1], found[2]


def kubectl(demo: Demo, *words: str, cluster: str = "management", fails: bool = False) -> str:
    done = subprocess.run(
        [KUBECTL, "--kubeconfig", demo.kubeconfig(cluster), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def hubctl(address: tuple[str, str], *words: str, want: int = 0, stdin: str = "") -> str:
    environment = {**os.environ, "HUBCTL_SERVER": address[0], "HUBCTL_TOKEN": address[1]}
    done = subprocess.run(
        [sys.executable, "-m", "hub.cli.main", *words],
        cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == want, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_queues_look_as_with_kueue(demo: Demo):
    lines = kubectl(demo, "get", "clusterqueues", "-o", "wide").splitlines()
    assert lines[0].split() == ["NAME", "COHORT", "STRATEGY", "PENDING", "WORKLOADS", "ADMITTED", "WORKLOADS"]
    assert {line.split()[0] for line in lines[1:]} == {"platform", "production", "research"}


def test_a_job_of_kubectl_runs_and_its_end_is_on_the_management_cluster(demo: Demo):
    name = kubectl(demo, "create", "-f", str(ROOT / "deploy/samples/job.yaml"), "-o", "name").strip()
    kubectl(demo, "wait", "-n", "research", "--for=condition=Complete", name, "--timeout=60s")
    job = json.loads(kubectl(demo, "get", "-n", "research", name, "-o", "json"))
    assert (job["spec"]["managedBy"], job["status"]["succeeded"]) == ("kueue.x-k8s.io/multikueue", 2)
    workloads = kubectl(demo, "get", "workloads", "-n", "research")
    row = next(line.split() for line in workloads.splitlines() if name.split("/")[1] in line)
    assert row[1:5] == ["gpus", "research", "True", "True"], "queue, reserved in, admitted, finished"


def test_a_deleted_job_leaves_nothing_anywhere(demo: Demo, tmp_path: Path):
    job = yaml.safe_load((ROOT / "deploy/samples/job.yaml").read_text())
    job["metadata"] = {**job["metadata"], "name": "cancelled"}
    del job["metadata"]["generateName"]
    job["spec"]["template"]["metadata"]["annotations"]["sandbox.multikueue-hub.io/duration"] = "1h"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    kubectl(demo, "create", "-f", str(tmp_path / "job.yaml"))
    kubectl(demo, "wait", "-n", "research", "--for=jsonpath={.status.ready}=2", "job/cancelled", "--timeout=60s")
    kubectl(demo, "delete", "-n", "research", "job/cancelled")
    kubectl(demo, "wait", "-n", "research", "--for=delete", "job/cancelled", "--timeout=60s", cluster="hopper")
    kubectl(
        demo,
        "wait",
        "-n",
        "research",
        "--for=delete",
        "pods",
        "-l",
        "batch.kubernetes.io/job-name=cancelled",
        "--timeout=60s",
        cluster="hopper",
    )


def test_why_names_every_cluster_that_cannot_hold_the_job(address: tuple[str, str]):
    told = hubctl(address, "why", "research/too-large-1")
    assert "can never fit" in told
    assert all(cluster in told for cluster in ("ampere", "hopper", "lovelace"))


def test_capacity_is_free_again_and_has_an_age(address: tuple[str, str]):
    rows = json.loads(hubctl(address, "capacity", "-o", "json"))["items"]
    assert {row["cluster"]: row["capacity"] for row in rows} == {"ampere": 24, "hopper": 32, "lovelace": 8}
    assert all(row["ageS"] < 10 and not row["stale"] for row in rows)


def test_a_cordoned_cluster_takes_nothing_until_it_is_uncordoned(address: tuple[str, str]):
    assert "its state is Cordoned" in hubctl(address, "clusters", "cordon", "hopper")
    assert "its state is Active" in hubctl(address, "clusters", "uncordon", "hopper")


@pytest.mark.parametrize(
    ("manifest", "want_exit", "want_words"),
    [
        pytest.param("apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\n", 4, "spec", id="a Job without a template"),
        pytest.param("apiVersion: batch/v9\nkind: Job\nmetadata: {name: x}\n", 4, "batch/v1", id="a wrong apiVersion"),
        pytest.param(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: neg, namespace: research, labels: {kueue.x-k8s.io/queue-name: gpus}}\n"
            "spec: {template: {spec: {restartPolicy: Never, containers: [{name: m, image: x, resources: {requests: {cpu: -1}}}]}}}\n",
            4,
            "spec.template.spec.containers[0].resources.requests",
            id="a negative request",
        ),
        pytest.param(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: nowhere, namespace: research, labels: {kueue.x-k8s.io/queue-name: none}}\n"
            "spec: {template: {spec: {restartPolicy: Never, containers: [{name: m, image: x}]}}}\n",
            0,
            "there is no LocalQueue none",
            id="an unknown queue is warned about",
        ),
    ],
)  # fmt: skip
def test_bad_manifests_name_the_field(address: tuple[str, str], manifest: str, want_exit: int, want_words: str):
    assert want_words in hubctl(address, "submit", "-f", "-", want=want_exit, stdin=manifest)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")
def test_the_page_shows_the_fleet_and_follows_it(demo: Demo, address: tuple[str, str]):
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(f"{address[0]}/")
        page.get_by_label("Token").fill(address[1])
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#live")).to_have_text("live")
        for cluster in ("ampere", "hopper", "lovelace"):
            expect(page.get_by_role("cell", name=cluster, exact=True).first).to_be_visible()
        kubectl(demo, "create", "-f", str(ROOT / "deploy/samples/job.yaml"))
        expect(page.get_by_role("link", name="research/train-").first).to_be_visible(timeout=20_000)
        page.get_by_role("link", name="research/too-large-1").click()
        expect(page.get_by_text("can never fit").first).to_be_visible()
        browser.close()
    assert problems == []


def test_ctrl_c_ends_it_with_the_verdict(demo: Demo):
    """The last test of this file: the demo is over afterwards."""
    demo.process.send_signal(signal.SIGINT)
    found = demo.end()
    assert demo.process.returncode == 0, demo.text
    assert (found["jobs"], found["finished"], found["never_fit"]) == (41, 40, 1)
    assert (found["double_runs"], found["lost"]) == (0, 0)
    assert set(found["per_cluster"]) == {"ampere", "hopper", "lovelace"}
