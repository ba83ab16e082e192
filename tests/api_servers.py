"""Kubernetes API servers for tests: a sandbox one in a thread of this process, or a real one from KUBEBUILDER_ASSETS.

Both are used over HTTPS with a token, so that a case cannot tell them apart. `Api.kubectl` runs the real kubectl.
"""

import asyncio
import base64
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from hub.kueue.runtime import tls
from hub.sandbox.access import User
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.faults import Faults
from hub.sandbox.http import make_app, serve
from hub.sandbox.script import Pace
from hub.sandbox.simulation import Simulation
from hub.sandbox.timers import LoopTimers

ROOT = Path(__file__).resolve().parents[1]
ADMIN_TOKEN = "admin-token"
#: token -> (user, groups); the same on both kinds of server.
USERS = {
    ADMIN_TOKEN: ("admin", ("system:masters",)),
    "ann-token": ("ann", ("team-a",)),
    "bob-token": ("bob", ()),
}
START_S = 60.0
#: Controllers that clean up after owners and namespaces.
TIDYING = ("garbage-collector-controller", "namespace-controller")


class Api:
    """Where a cluster's API is and how to get in. `controllers`: owners and namespaces are cleaned up after."""

    def __init__(self, kind: str, url: str, ca_pem: str, folder: Path, *, controllers: bool) -> None:
        self.kind, self.url, self.ca_pem, self.controllers = kind, url, ca_pem, controllers
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(kubeconfig(url, ca_pem, ADMIN_TOKEN)))
        self.ssl = ssl.create_default_context(cadata=ca_pem)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = 30.0) -> str:
        """Output of kubectl; with `check` it must succeed. A dictionary cache per server keeps them apart."""
        done = self.run_kubectl(*arguments, stdin=stdin, timeout_s=timeout_s)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def run_kubectl(
        self, *arguments: str, stdin: str = "", timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"HOME": str(self.folder)}
        return subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )

    def kubectl_command(self, *arguments: str) -> list[str]:
        command = [kubectl_path(), "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.folder / "cache")]
        return [*command, *arguments]


def kubeconfig(url: str, ca_pem: str, token: str) -> dict[str, Any]:
    authority = base64.b64encode(ca_pem.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }


def kubectl_path() -> str:
    """The kubectl that `make` fetched, or the one on PATH."""
    own = ROOT / ".tools" / "kubectl"
    return str(own) if own.exists() else (shutil.which("kubectl") or "")


# --- sandbox -----------------------------------------------------------------------------------------------------------


class SandboxThread:
    """A sandbox API server with an event loop of its own. `call` runs a function in that loop."""

    def __init__(self, *, controllers: bool = False) -> None:
        self._controllers = controllers
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self.server = ApiServer("sandbox", time.time)
        self.faults = Faults(self.server)
        for token, (name, groups) in USERS.items():
            self.server.access.tokens[token] = User(name=name, groups=groups)
        self.url = self.ca_pem = ""
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(START_S), "the sandbox did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    def call(self, function: Any, *arguments: Any) -> Any:
        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(START_S)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        now = time.time()
        ca = tls.make_ca("sandbox", now)
        identity = tls.make_certificate("sandbox", now, ca=ca, hosts=["127.0.0.1", "localhost"])
        app = make_app(self.server, self.faults)
        if self._controllers:
            timers = LoopTimers()
            Simulation(self.server, timers, Pace(restart_s=0.5)).start()
            timers.start()
        serving = await serve(app, tls=tls.server_context(identity), ca_pem=ca.certificate_pem)
        self.url, self.ca_pem = serving.url, serving.ca_pem
        self._ready.set()
        await self._stop.wait()
        await serving.close()


@contextmanager
def sandbox_api(folder: Path, *, controllers: bool = False) -> Iterator[Api]:
    """`controllers`: with everything that lives on top of the API server, but no nodes."""
    thread = SandboxThread(controllers=controllers)
    thread.start()
    try:
        yield Api("sandbox", thread.url, thread.ca_pem, folder, controllers=True)
    finally:
        thread.stop()


# --- the real one --------------------------------------------------------------------------------------------------------


def real_assets() -> Path | None:
    """The folder with etcd and kube-apiserver, as envtest has it."""
    folder = os.environ.get("KUBEBUILDER_ASSETS", "")
    return Path(folder) if folder and (Path(folder) / "kube-apiserver").exists() else None


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _pem_files(folder: Path) -> str:
    now = time.time()
    ca = tls.make_ca("real", now)
    serving = tls.make_certificate("127.0.0.1", now, ca=ca, hosts=["127.0.0.1", "localhost"])
    (folder / "tls.crt").write_text(serving.certificate_pem)
    (folder / "tls.key").write_text(serving.key_pem)
    # Service account tokens are signed with the serving key: any key will do for a test.
    (folder / "sa.key").write_text(serving.key_pem)
    rows = [f'{token},{user},{user},"{",".join(groups)}"' for token, (user, groups) in USERS.items()]
    (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
    return ca.certificate_pem


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)


def _apiserver_command(assets: Path, folder: Path, port: int, etcd: str) -> list[str]:
    return [
        str(assets / "kube-apiserver"),
        f"--etcd-servers={etcd}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={folder}/tls.crt",
        f"--tls-private-key-file={folder}/tls.key",
        f"--token-auth-file={folder}/tokens.csv",
        f"--service-account-key-file={folder}/tls.crt",
        f"--service-account-signing-key-file={folder}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
        "--allow-privileged=true",
    ]


@contextmanager
def real_api(assets: Path, folder: Path, *, controllers: Sequence[str] = TIDYING) -> Iterator[Api]:
    """etcd and kube-apiserver; kube-controller-manager too where the folder has one, with these controllers."""
    port, client, peer, manager_port = _free_ports(4)
    ca_pem = _pem_files(folder)
    etcd_urls = [f"-listen-client-urls=http://127.0.0.1:{client}", f"-advertise-client-urls=http://127.0.0.1:{client}"]
    peer_url = f"-listen-peer-urls=http://127.0.0.1:{peer}"
    etcd = [str(assets / "etcd"), f"-data-dir={folder}/etcd", "-unsafe-no-fsync=true", *etcd_urls, peer_url]
    processes = [_start(etcd, folder / "etcd.log")]
    try:
        command = _apiserver_command(assets, folder, port, f"http://127.0.0.1:{client}")
        processes.append(_start(command, folder / "apiserver.log"))
        manager = assets / "kube-controller-manager"
        api = Api("real", f"https://127.0.0.1:{port}", ca_pem, folder, controllers=manager.exists())
        _wait_ready(api, folder / "apiserver.log")
        if manager.exists():
            processes.append(_start(_manager_command(manager, api, manager_port, controllers), folder / "manager.log"))
        yield api
    finally:
        # Nothing of theirs is kept, so they need no time to say goodbye.
        for process in reversed(processes):
            process.kill()
            process.wait(START_S)


def _manager_command(manager: Path, api: Api, port: int, controllers: Sequence[str]) -> list[str]:
    return [
        str(manager),
        f"--kubeconfig={api.kubeconfig}",
        "--leader-elect=false",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--controllers={','.join(controllers)}",
        "--use-service-account-credentials=false",
    ]


def _wait_ready(api: Api, log: Path) -> None:
    request = urllib.request.Request(f"{api.url}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    deadline = time.monotonic() + START_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, context=api.ssl, timeout=2) as answer:
                if answer.read() == b"ok":
                    return
        except OSError:
            pass
        pause.wait(0.2)
    raise AssertionError(f"kube-apiserver is not ready after {START_S:.0f} s; see {log}")
