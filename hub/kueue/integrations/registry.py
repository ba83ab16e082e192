"""Every job kind that there is, by the name it has in Kueue's configuration."""

from hub.kueue.api.meta import Resource
from hub.kueue.integrations.batch_job import BATCH_JOB
from hub.kueue.integrations.interface import Integration

INTEGRATIONS: dict[str, Integration] = {
    BATCH_JOB.framework: BATCH_JOB,
}

_BY_KIND = {(i.resource.api_version, i.resource.kind): i for i in INTEGRATIONS.values()}


def integration_for(api_version: str, kind: str) -> Integration | None:
    """The integration of a manifest's apiVersion and kind."""
    return _BY_KIND.get((api_version, kind))


def integration_of(resource: Resource) -> Integration | None:
    return _BY_KIND.get((resource.api_version, resource.kind))
