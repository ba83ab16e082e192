"""Questions in the form of objects: who is this token, may this user do that. They are answered, not stored."""

from collections.abc import Callable, Iterable

from hub.sandbox.access import MASTERS, Access, Attributes, Rule, User, reason_denied
from hub.sandbox.documents import Document
from hub.sandbox.errors import ApiError, bad_request


def _spec(review: Document) -> Document:
    spec = review.get("spec")
    if not isinstance(spec, dict):
        raise bad_request("a review needs a spec")
    return spec


def token_review(access: Access, user: User, review: Document, namespace: str) -> Document:
    token = _spec(review).get("token") or ""
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    if (found := access.user_of(token)) is None:
        return {"authenticated": False, "user": {}, "error": "the token is not known to this cluster"}
    return {"authenticated": True, "user": found.as_document(), "audiences": _spec(review).get("audiences") or []}


def self_review(access: Access, user: User, review: Document, namespace: str) -> Document:
    return {"userInfo": user.as_document()}


def _attributes(spec: Document, namespace: str) -> Attributes:
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if bool(resource) == bool(other):
        raise bad_request("exactly one of nonResourceAttributes or resourceAttributes must be specified")
    if other:
        return Attributes(verb=other.get("verb", ""), path=other.get("path", ""))
    assert isinstance(resource, dict)
    return Attributes(
        verb=resource.get("verb", ""),
        group=resource.get("group", ""),
        resource=resource.get("resource", ""),
        subresource=resource.get("subresource", ""),
        namespace=resource.get("namespace", "") or namespace,
        name=resource.get("name", ""),
    )


def _verdict(access: Access, user: User, wanted: Attributes) -> Document:
    if access.allows(user, wanted):
        return {"allowed": True, "reason": "RBAC: allowed by a binding of the user or of one of its groups"}
    return {"allowed": False, "reason": "" if wanted.path else reason_denied(user, wanted)}


def self_access_review(access: Access, user: User, review: Document, namespace: str) -> Document:
    return _verdict(access, user, _attributes(_spec(review), ""))


def access_review(access: Access, user: User, review: Document, namespace: str) -> Document:
    spec = _spec(review)
    if not spec.get("user") and not spec.get("groups"):
        raise ApiError(
            422, "Invalid", "SubjectAccessReview is invalid: spec.user: at least one of user or group must be specified"
        )
    subject = User(name=spec.get("user", ""), groups=tuple(spec.get("groups") or ()))
    return _verdict(access, subject, _attributes(spec, namespace))


def _listed(rules: Iterable[Rule], name: str) -> list[Document]:
    return [dict(rule.policy) for rule in rules if rule.policy.get(name)]


def rules_review(access: Access, user: User, review: Document, namespace: str) -> Document:
    """Everything the user may do in one namespace."""
    where = _spec(review).get("namespace", "")
    rules = [r for r in access.rules(user) if r.namespace in ("", where)]
    if MASTERS in user.groups:
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        rules.insert(0, Rule("", everything))
    return {
        "resourceRules": _listed(rules, "resources"),
        "nonResourceRules": _listed(rules, "nonResourceURLs"),
        "incomplete": False,
    }


Review = Callable[[Access, User, Document, str], Document]

#: Collection -> how its status comes about.
REVIEWS: dict[str, Review] = {
    "tokenreviews.authentication.k8s.io": token_review,
    "selfsubjectreviews.authentication.k8s.io": self_review,
    "selfsubjectaccessreviews.authorization.k8s.io": self_access_review,
    "subjectaccessreviews.authorization.k8s.io": access_review,
    "localsubjectaccessreviews.authorization.k8s.io": access_review,
    "selfsubjectrulesreviews.authorization.k8s.io": rules_review,
}
