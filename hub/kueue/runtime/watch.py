"""List-then-watch as states and one step function. Pure: the informer does what `wanted` says and tells what came of it.

    Empty ──first page──▶ Listing ──last page──▶ Listed ──watch opened──▶ Watching
      ▲                      │ broken, expired     │  ▲ ended, broken        │
      └──────────────────────┴──── expired ────────┴──┴─────────────────────┘

What is missing from a list is gone only when the list is complete (`Complete`): a list that broke off half-way, or one page
of many, says nothing about the objects that were not in it.
"""

from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey, key_of

# --- states ----------------------------------------------------------------------------------------------------------


class Empty(Struct, frozen=True):
    """Nothing is known, or what is known is too old to go on from."""


class Listing(Struct, frozen=True, kw_only=True):
    """Some pages are in."""

    token: str
    seen: frozenset[ObjectKey]


class Listed(Struct, frozen=True, kw_only=True):
    """Everything up to this resourceVersion is in; no watch is open."""

    resource_version: str


class Watching(Struct, frozen=True, kw_only=True):
    """Changes after this resourceVersion are on their way."""

    resource_version: str


State = Empty | Listing | Listed | Watching

# --- what the edge saw -----------------------------------------------------------------------------------------------


class PageArrived(Struct, frozen=True, kw_only=True):
    items: list[dict[str, Any]]
    resource_version: str
    token: str = ""


class WatchOpened(Struct, frozen=True):
    pass


class EventArrived(Struct, frozen=True, kw_only=True):
    type: str
    object: dict[str, Any]


class Ended(Struct, frozen=True):
    """The server ended the watch as it had been asked to, or the connection broke, or the request failed."""


class TooOld(Struct, frozen=True):
    """410: the resourceVersion or the continue token is not kept any more."""


Seen = PageArrived | WatchOpened | EventArrived | Ended | TooOld

# --- what follows ----------------------------------------------------------------------------------------------------


class Put(Struct, frozen=True, kw_only=True):
    object: dict[str, Any]


class Gone(Struct, frozen=True, kw_only=True):
    object: dict[str, Any]


class Complete(Struct, frozen=True, kw_only=True):
    """The list is complete: whatever is not among these keys does not exist any more."""

    keys: frozenset[ObjectKey]


Change = Put | Gone | Complete


class ListPage(Struct, frozen=True, kw_only=True):
    token: str


class OpenWatch(Struct, frozen=True, kw_only=True):
    resource_version: str


class ReadWatch(Struct, frozen=True):
    pass


def wanted(state: State) -> ListPage | OpenWatch | ReadWatch:
    """The next request that the edge should make."""
    match state:
        case Empty():
            return ListPage(token="")
        case Listing():
            return ListPage(token=state.token)
        case Listed():
            return OpenWatch(resource_version=state.resource_version)
        case Watching():
            return ReadWatch()


class InvalidStep(Exception):  # noqa: N818 - named like the other state machines' InvalidTransition
    """The edge told of something that cannot happen in this state: a bug in the edge."""

    def __init__(self, state: State, seen: Seen) -> None:
        super().__init__(f"{type(seen).__name__} while {type(state).__name__}: {state}")


def step(state: State, seen: Seen) -> tuple[State, list[Change]]:
    """The next state, and what changed. Raises InvalidStep."""
    match state, seen:
        case _, TooOld():
            return Empty(), []
        case Empty() | Listing(), PageArrived():
            return _page(state, seen)
        case Empty() | Listing(), Ended():
            return Empty(), []  # a continue token is not worth keeping across a failure: begin again
        case Listed(), WatchOpened():
            return Watching(resource_version=state.resource_version), []
        case Listed() | Watching(), Ended():
            return Listed(resource_version=state.resource_version), []
        case Watching(), EventArrived():
            return _event(state, seen)
    raise InvalidStep(state, seen)


def _page(state: Empty | Listing, page: PageArrived) -> tuple[State, list[Change]]:
    before = state.seen if isinstance(state, Listing) else frozenset[ObjectKey]()
    seen = before | {key_of(item) for item in page.items}
    puts: list[Change] = [Put(object=item) for item in page.items]
    if page.token:
        return Listing(token=page.token, seen=seen), puts
    return Listed(resource_version=page.resource_version), [*puts, Complete(keys=seen)]


def _event(state: Watching, event: EventArrived) -> tuple[State, list[Change]]:
    version = event.object.get("metadata", {}).get("resourceVersion") or state.resource_version
    after = Watching(resource_version=version)
    match event.type:
        case "ADDED" | "MODIFIED":
            return after, [Put(object=event.object)]
        case "DELETED":
            return after, [Gone(object=event.object)]
        case _:  # BOOKMARK, and types that a newer server may invent
            return after, []
