"""List-then-watch: what each answer of the server means, and that nothing vanishes by mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.kueue.api.meta import ObjectKey
from hub.kueue.runtime.informer import without_managed_fields
from hub.kueue.runtime.watch import (
    Complete,
    Empty,
    Ended,
    EventArrived,
    Gone,
    InvalidStep,
    Listed,
    Listing,
    ListPage,
    OpenWatch,
    PageArrived,
    Put,
    ReadWatch,
    TooOld,
    Watching,
    WatchOpened,
    step,
    wanted,
)


def job(name: str, version: str = "1") -> dict:
    return {"metadata": {"namespace": "a", "name": name, "resourceVersion": version}}


def keys(*names: str) -> frozenset[ObjectKey]:
    return frozenset(ObjectKey("a", name) for name in names)


first_page = PageArrived(items=[job("x")], resource_version="5", token="more")
last_page = PageArrived(items=[job("y")], resource_version="5")
listing = Listing(token="more", seen=keys("x"))
listed = Listed(resource_version="5")
watching = Watching(resource_version="5")


@pytest.mark.parametrize(
    ("state", "seen", "want_state", "want_changes"),
    [
        pytest.param(
            Empty(), first_page, listing, [Put(object=job("x"))], id="a first page says nothing about the rest"
        ),
        pytest.param(
            listing,
            last_page,
            listed,
            [Put(object=job("y")), Complete(keys=keys("x", "y"))],
            id="the last page completes the list with the keys of all pages",
        ),
        pytest.param(listing, Ended(), Empty(), [], id="a list that broke off begins again and removes nothing"),
        pytest.param(listing, TooOld(), Empty(), [], id="an expired continue token begins the list again"),
        pytest.param(listed, WatchOpened(), watching, [], id="the watch opens where the list ended"),
        pytest.param(
            watching,
            EventArrived(type="MODIFIED", object=job("x", "7")),
            Watching(resource_version="7"),
            [Put(object=job("x", "7"))],
            id="an event moves the resourceVersion on",
        ),
        pytest.param(
            watching,
            EventArrived(type="DELETED", object=job("x", "8")),
            Watching(resource_version="8"),
            [Gone(object=job("x", "8"))],
            id="a deletion is one object gone",
        ),
        pytest.param(
            watching,
            EventArrived(type="BOOKMARK", object={"metadata": {"resourceVersion": "9"}}),
            Watching(resource_version="9"),
            [],
            id="a bookmark moves the resourceVersion and nothing else",
        ),
        pytest.param(watching, Ended(), listed, [], id="a watch that ended is opened again without a list"),
        pytest.param(watching, TooOld(), Empty(), [], id="410 lists again"),
    ],
)
def test_step(state, seen, want_state, want_changes):
    assert step(state, seen) == (want_state, want_changes)


def test_impossible_news_tell_state_and_event():
    with pytest.raises(InvalidStep, match="EventArrived while Empty"):
        step(Empty(), EventArrived(type="ADDED", object=job("x")))


def test_each_state_has_one_next_request():
    wishes = [wanted(state) for state in (Empty(), listing, listed, watching)]
    assert wishes == [ListPage(token=""), ListPage(token="more"), OpenWatch(resource_version="5"), ReadWatch()]


@given(st.lists(st.sampled_from(["page", "last", "broken", "expired"]), max_size=12))
def test_only_a_complete_list_says_what_is_gone(answers):
    """Whatever breaks in between, Complete names every key of one unbroken series of pages."""
    state, series = Empty(), 0
    for number, answer in enumerate(answers):
        if not isinstance(state, Empty | Listing):
            break
        page = PageArrived(items=[job(f"j{number}")], resource_version="5", token="more" if answer == "page" else "")
        seen = {"broken": Ended(), "expired": TooOld()}.get(answer, page)
        series = series + 1 if seen is page else 0
        state, changes = step(state, seen)
        complete = [change for change in changes if isinstance(change, Complete)]
        assert len(complete) == (answer == "last")
        if complete:
            assert len(complete[0].keys) == series


def test_managed_fields_are_not_kept():
    trimmed = without_managed_fields({"metadata": {"name": "x", "managedFields": [{"manager": "kubectl"}]}})
    assert trimmed == {"metadata": {"name": "x"}}
