"""Every case of this folder runs on the sandbox's API server and, where KUBEBUILDER_ASSETS is set, on a real one."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.api_servers import Api, real_api, real_assets, sandbox_api
from tests.contract.client import Client

_namespaces = itertools.count(1)


@pytest.fixture(scope="session", params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sandbox":
        with sandbox_api(folder) as served:
            yield served
        return
    if (assets := real_assets()) is None:
        pytest.skip("KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver")
    with real_api(assets, folder) as served:
        yield served


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    async with Client(api) as connected:
        yield connected


@pytest.fixture
async def namespace(api: Api, client: Client) -> str:
    """A namespace of the test's own."""
    name = f"ns-{next(_namespaces)}"
    await client.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


@pytest.fixture
def configs(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"
