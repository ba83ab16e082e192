"""What goes wrong when something is read from outside. Every error names the field as kubectl would print it."""


class ApiError(Exception):
    """Base of what this package raises."""


class DecodeError(ApiError):
    """A manifest is not what its kind says it is. `path` is the field, e.g. spec.podSets[0].count; "" is the object."""

    def __init__(self, path: str, message: str, *, subject: str = "") -> None:
        self.path, self.message, self.subject = path, message, subject
        super().__init__(": ".join(part for part in (subject, path, message) if part))


class QuantityError(ApiError, ValueError):
    """Not a Kubernetes quantity."""
