"""What a queue could still admit, and ever: the figure that a worker tells its hub."""

from hub.kueue.admission import messages as m
from hub.kueue.admission.state import AdmissionState
from hub.kueue.api import resources
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import decode

GPU = "nvidia.com/gpu"


def config(kind: str, name: str, **spec) -> m.ConfigChanged:
    manifest = {"apiVersion": resources.KUEUE_API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return m.ConfigChanged(now=0.0, object=decode(manifest))


def queue(name: str, quota: int, **more) -> m.ConfigChanged:
    flavors = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": quota}]}]
    groups = [{"coveredResources": [GPU], "flavors": flavors}]
    return config("ClusterQueue", name, namespaceSelector={}, resourceGroups=groups, **more)


def test_room_is_what_is_free_borrowing_included():
    state = AdmissionState()
    for event in (
        config("ResourceFlavor", "h100"),
        queue("a", 4, cohortName="all"),
        queue("b", 6, cohortName="all"),
        queue("alone", 3),
    ):
        state.handle(event)
    rooms = {
        name: state.queue_status("ClusterQueue", ObjectKey("", name)).room["h100"][GPU] for name in ("a", "b", "alone")
    }
    assert rooms == {"a": (10, 10), "b": (10, 10), "alone": (3, 3)}
