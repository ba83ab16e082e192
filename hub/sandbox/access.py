"""Who asks, and may they? Static tokens for the first question, RBAC objects of the cluster for the second.

    token ──▶ User (name, groups) ──▶ bindings that name the user or a group ──▶ roles ──▶ rules ──▶ yes or no

Without a token a request is `system:anonymous`; nothing is open to it but health and version. `system:masters` may do
everything. Rules are collected once per user and thrown away when any RBAC object changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from hub.sandbox.documents import Document
from hub.sandbox.errors import ApiError, forbidden, qualified, unauthorized
from hub.sandbox.selectors import matches_selector
from hub.sandbox.storage import Collection, Storage

RBAC = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
SERVICE_ACCOUNT = "system:serviceaccount:"


class User(Struct, frozen=True, kw_only=True):
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""

    def as_document(self) -> Document:
        """authentication.k8s.io/v1 UserInfo."""
        found: Document = {"username": self.name, "groups": list(self.groups)}
        return found | {"uid": self.uid} if self.uid else found


ANONYMOUS = User(name="system:anonymous", groups=(UNAUTHENTICATED,))
#: The server itself: what controllers in the process do is not asked about.
ADMIN = User(name="admin", groups=(MASTERS, AUTHENTICATED))


def service_account(namespace: str, name: str, uid: str = "") -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(name=f"{SERVICE_ACCOUNT}{namespace}:{name}", groups=groups, uid=uid)


class Attributes(Struct, frozen=True, kw_only=True):
    """What is asked for: a verb on a resource, or on a `path` that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Rule(Struct, frozen=True):
    """One PolicyRule and where it holds: "" for the whole cluster."""

    namespace: str
    policy: Mapping[str, Any]

    def allows(self, a: Attributes) -> bool:
        if not _names(self.policy.get("verbs"), a.verb):
            return False
        if a.path:
            return not self.namespace and _matches_path(self.policy.get("nonResourceURLs") or (), a.path)
        if self.namespace and self.namespace != a.namespace:
            return False
        if not _names(self.policy.get("apiGroups"), a.group) or not self._covers(a):
            return False
        names = self.policy.get("resourceNames") or ()
        return not names or a.name in names

    def _covers(self, a: Attributes) -> bool:
        resources = self.policy.get("resources") or ()
        if "*" in resources or a.full_resource in resources:
            return True
        return bool(a.subresource) and f"*/{a.subresource}" in resources


def _names(listed: Iterable[str] | None, wanted: str) -> bool:
    found = listed or ()
    return wanted in found or "*" in found


def _matches_path(patterns: Iterable[str], path: str) -> bool:
    return any(p in ("*", path) or (p.endswith("*") and path.startswith(p[:-1])) for p in patterns)


class Access:
    """Answers for one cluster. `tokens` may be changed at any time."""

    def __init__(self, storage: Storage) -> None:
        self.tokens: dict[str, User] = {}
        self._roles, self._bindings = storage.collection(f"roles.{RBAC}"), storage.collection(f"rolebindings.{RBAC}")
        self._cluster_roles = storage.collection(f"clusterroles.{RBAC}")
        self._cluster_bindings = storage.collection(f"clusterrolebindings.{RBAC}")
        self._known: dict[User, list[Rule]] = {}
        for collection in (self._roles, self._bindings, self._cluster_roles, self._cluster_bindings):
            collection.listeners.append(lambda event: self._known.clear())

    # --- who -----------------------------------------------------------------------------------------------------------

    def authenticate(self, authorization: str | None) -> User:
        """The user of an Authorization header. Raises ApiError 401 for a token nobody knows."""
        if authorization is None:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or (user := self.user_of(token.strip())) is None:
            raise unauthorized()
        return user

    def user_of(self, token: str) -> User | None:
        user = self.tokens.get(token)
        if user is None or AUTHENTICATED in user.groups:
            return user
        return User(name=user.name, groups=(*user.groups, AUTHENTICATED), uid=user.uid)

    def impersonated(self, user: User, headers: Mapping[str, str], groups: Iterable[str]) -> User:
        """Who `user` wants to be taken for (Impersonate-User and -Group). Raises ApiError 403."""
        name, groups = headers["Impersonate-User"], tuple(groups)
        self.require(user, _impersonation(name))
        for group in groups:
            self.require(user, Attributes(verb="impersonate", resource="groups", name=group))
        if name.startswith(SERVICE_ACCOUNT) and not groups:
            return service_account(*name.removeprefix(SERVICE_ACCOUNT).split(":", 1))
        known = AUTHENTICATED if name != ANONYMOUS.name else UNAUTHENTICATED
        return User(name=name, groups=groups if known in groups else (*groups, known))

    # --- may they ------------------------------------------------------------------------------------------------------

    def require(self, user: User, wanted: Attributes) -> None:
        """Raises ApiError 403."""
        if not self.allows(user, wanted):
            raise denied(user, wanted)

    def allows(self, user: User, wanted: Attributes) -> bool:
        return MASTERS in user.groups or any(rule.allows(wanted) for rule in self.rules(user))

    def rules(self, user: User) -> list[Rule]:
        """Every rule that any binding gives to the user."""
        if (found := self._known.get(user)) is None:
            found = self._known[user] = list(self._collect(user))
        return found

    def _collect(self, user: User) -> Iterator[Rule]:
        for stored in self._cluster_bindings.objects.values():
            if _binds(stored.object, user, ""):
                yield from self._role_rules(stored.object["roleRef"], "")
        for stored in self._bindings.objects.values():
            if _binds(stored.object, user, stored.key[0]):
                yield from self._role_rules(stored.object["roleRef"], stored.key[0])

    def _role_rules(self, reference: Document, namespace: str) -> Iterator[Rule]:
        cluster_wide = reference.get("kind") == "ClusterRole"
        roles: Collection = self._cluster_roles if cluster_wide else self._roles
        stored = roles.objects.get(("" if cluster_wide else namespace, reference.get("name", "")))
        if stored is None:
            return
        for policy in self._policies(stored.object):
            yield Rule(namespace, policy)

    def _policies(self, role: Document) -> list[Document]:
        """The rules of a role; an aggregated ClusterRole has those of every role that its selectors find."""
        found: list[Document] = list(role.get("rules") or ())
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
            for stored in self._cluster_roles.objects.values():
                labels = stored.object["metadata"].get("labels") or {}
                if stored.object is not role and matches_selector(selector, labels):
                    found += stored.object.get("rules") or ()
        return found


def _impersonation(name: str) -> Attributes:
    if name.startswith(SERVICE_ACCOUNT):
        namespace, _, account = name.removeprefix(SERVICE_ACCOUNT).partition(":")
        return Attributes(verb="impersonate", resource="serviceaccounts", namespace=namespace, name=account)
    return Attributes(verb="impersonate", resource="users", name=name)


def _binds(binding: Document, user: User, namespace: str) -> bool:
    return any(_is_subject(subject, user, namespace) for subject in binding.get("subjects") or ())


def _is_subject(subject: Document, user: User, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return subject.get("name") == user.name
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            return user.name == f"{SERVICE_ACCOUNT}{subject.get('namespace') or namespace}:{subject.get('name')}"
    return False


def reason_denied(user: User, wanted: Attributes) -> str:
    what = f'resource "{wanted.full_resource}" in API group "{wanted.group}"'
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    return f'User "{user.name}" cannot {wanted.verb} {what} {where}'


def denied(user: User, wanted: Attributes) -> ApiError:
    if wanted.path:
        message = f'forbidden: User "{user.name}" cannot {wanted.verb} path "{wanted.path}"'
        return ApiError(403, "Forbidden", message, {})
    refusal = forbidden(wanted.group, wanted.resource, wanted.name, reason_denied(user, wanted))
    if wanted.subresource:
        shown = f'{qualified(wanted.group, wanted.resource)} "{wanted.name}" is forbidden'
        return ApiError(403, "Forbidden", f"{shown}: {reason_denied(user, wanted)}", refusal.details)
    return refusal


# --- what a new cluster knows ------------------------------------------------------------------------------------------

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")


def _rule(groups: Iterable[str], resources: Iterable[str], verbs: Iterable[str]) -> Document:
    return {"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)}


def _paths(*paths: str) -> Document:
    return {"nonResourceURLs": list(paths), "verbs": ["get"]}


HEALTH = ("/healthz", "/livez", "/readyz", "/version", "/version/")
DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *HEALTH)
SHOWN = (
    _rule([""], ["configmaps", "endpoints", "events", "limitranges", "namespaces", "persistentvolumeclaims"], READ),
    _rule([""], ["pods", "pods/log", "pods/status", "resourcequotas", "serviceaccounts", "services"], READ),
    _rule(["apps", "batch", "autoscaling", "policy", "networking.k8s.io", "discovery.k8s.io"], ["*"], READ),
)
EDITABLE = (
    _rule(
        [""],
        ["configmaps", "events", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"],
        WRITE,
    ),
    _rule([""], ["secrets"], READ),
    _rule([""], ["pods/eviction", "serviceaccounts/token"], ["create"]),
    _rule(["apps", "batch", "autoscaling", "policy", "networking.k8s.io"], ["*"], WRITE),
    _rule(["coordination.k8s.io"], ["leases"], (*READ, *WRITE)),
)
ADMINISTERED = (
    _rule([RBAC], ["roles", "rolebindings"], (*READ, *WRITE)),
    _rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"]),
)
REVIEWS = (
    _rule(["authorization.k8s.io"], ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
    _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
)

#: ClusterRole -> its own rules.
ROLES: dict[str, tuple[Document, ...]] = {
    "cluster-admin": (_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}),
    "system:basic-user": REVIEWS,
    "system:discovery": (_paths(*DISCOVERY),),
    "system:public-info-viewer": (_paths(*HEALTH),),
    "system:aggregate-to-view": SHOWN,
    "system:aggregate-to-edit": EDITABLE,
    "system:aggregate-to-admin": ADMINISTERED,
}
#: ClusterRoles that gather the rules of others, by the label that those carry. Products add theirs the same way.
AGGREGATED: dict[str, tuple[str, ...]] = {
    "view": ("view",),
    "edit": ("edit", "view"),
    "admin": ("admin", "edit", "view"),
}
#: ClusterRole -> groups that have it everywhere.
BOUND: dict[str, tuple[str, ...]] = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}
LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}


def _aggregation_label(level: str) -> str:
    return f"{RBAC}/aggregate-to-{level}"


def bootstrap_objects() -> Iterator[Document]:
    """The ClusterRoles and ClusterRoleBindings that a cluster starts with."""
    for name, rules in ROLES.items():
        labels = dict(LABELS)
        if name.startswith("system:aggregate-to-"):
            labels[_aggregation_label(name.removeprefix("system:aggregate-to-"))] = "true"
        yield _cluster_role(name, labels) | {"rules": list(rules)}
    for name, levels in AGGREGATED.items():
        selectors = [{"matchLabels": {_aggregation_label(level): "true"}} for level in levels]
        yield _cluster_role(name, dict(LABELS)) | {"aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []}
    for name, groups in BOUND.items():
        subjects = [{"kind": "Group", "apiGroup": RBAC, "name": group} for group in groups]
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        meta = {"name": name, "labels": LABELS}
        kind = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding"}
        yield kind | {"metadata": meta, "roleRef": reference, "subjects": subjects}


def _cluster_role(name: str, labels: dict[str, str]) -> Document:
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name, "labels": labels}}
