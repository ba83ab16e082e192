"""Rules for AdmissionCheck, MultiKueueConfig and MultiKueueCluster that their schemas do not state."""

from hub.kueue.api.rules.field_errors import FieldErrors, duplicates, immutable, invalid
from hub.kueue.api.v1beta2.checks import AdmissionCheck, MultiKueueCluster, MultiKueueConfig


def admission_check(new: AdmissionCheck, old: AdmissionCheck | None) -> FieldErrors:
    if old and old.spec.controller_name != new.spec.controller_name:
        yield immutable("spec.controllerName", new.spec.controller_name)


def multikueue_config(new: MultiKueueConfig, old: MultiKueueConfig | None) -> FieldErrors:
    yield from duplicates("spec.clusters", new.spec.clusters)


def multikueue_cluster(new: MultiKueueCluster, old: MultiKueueCluster | None) -> FieldErrors:
    source = new.spec.cluster_source
    given = [
        name
        for name, value in (("kubeConfig", source.kube_config), ("clusterProfileRef", source.cluster_profile_ref))
        if value is not None
    ]
    if len(given) != 1:
        detail = "exactly one of kubeConfig and clusterProfileRef must be set"
        yield invalid("spec.clusterSource", given, detail)
