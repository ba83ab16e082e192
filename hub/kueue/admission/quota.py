"""The quota tree: who may use how much of each resource of each flavor, and who uses what.

    root cohort ── cohort ── ClusterQueue        every node has one Cell per (flavor, resource);
         ▲            ▲           ▲              a cell points to the cell of the same pair in the parent
       Cell ◀────── Cell ◀────── Cell

A node first uses what it never lends (`local`); only usage beyond that reaches its parent. That is the whole of borrowing
and lending, at any depth. All arithmetic walks one chain of cells, so a change costs the depth of the tree and nothing
else. Amounts are engine units (milli-CPU, else the resource's own).

Kueue describes the same model in KEP-79 (hierarchical cohorts).
"""

from collections.abc import Iterator

from hub.kueue.api.quantity import add, clamp

#: (flavor, resource)
FlavorResource = tuple[str, str]

#: Cohorts nested deeper than this are treated like a cycle: nobody means it, and arithmetic walks the chain.
DEPTH_MAX = 64


class Cell:
    """One resource of one flavor at one node. `parent` is None exactly when the node has no parent."""

    __slots__ = (
        "borrowing_limit",
        "key",
        "lending_limit",
        "local",
        "named",
        "node",
        "nominal",
        "parent",
        "quoted",
        "subtree",
        "usage",
    )

    def __init__(self, node: "Node", key: FlavorResource) -> None:
        self.node = node
        self.key = key
        self.parent: Cell | None = None
        self.nominal = 0
        self.borrowing_limit: int | None = None
        self.lending_limit: int | None = None
        #: What the node and everything below it may use without borrowing from above.
        self.subtree = 0
        #: The part of `subtree` that is never lent.
        self.local = 0
        #: For a ClusterQueue: of its workloads. For a cohort: what its children use beyond their local parts.
        self.usage = 0
        #: The node's own quota names this pair; and: its own or one below does. Usage of a pair that no quota names any
        #: more has a cell too.
        self.named = False
        self.quoted = False

    def __repr__(self) -> str:
        return f"Cell({self.node.name} {self.key}: {self.usage}/{self.subtree}, nominal {self.nominal})"


class Node:
    """A ClusterQueue or a cohort in the tree."""

    __slots__ = ("cells", "cohorts", "height", "is_cohort", "lendable", "name", "parent", "queues", "weight")

    def __init__(self, name: str, *, is_cohort: bool) -> None:
        self.name = name
        self.is_cohort = is_cohort
        self.parent: Node | None = None
        self.cohorts: list[Node] = []
        self.queues: list[Node] = []
        self.cells: dict[FlavorResource, Cell] = {}
        self.weight = 1.0
        #: 0 for a ClusterQueue and an empty cohort, 1 for a cohort of ClusterQueues, and so on up.
        self.height = 0
        #: For a cohort, resource -> the most that its children together could ever borrow. Fair shares divide by it.
        self.lendable: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Node({self.name})"

    @property
    def root(self) -> "Node":
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def ancestors(self) -> Iterator["Node"]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def path(self) -> str:
        """As Kueue prints it: /root/cohort/queue."""
        return "/" + "/".join([*reversed([n.name for n in self.ancestors()]), self.name])


# --- reading ----------------------------------------------------------------------------------------------------------


def available(cell: Cell) -> int:
    """What may still be used here now, borrowing included.

    Negative when the tree is over-admitted: the debt of one child is seen by all of them, and that is right, because
    the room that they count on is taken.
    """
    parent = cell.parent
    if parent is None:
        return cell.subtree - cell.usage
    room = available(parent)
    beyond = cell.usage - cell.local
    limit = cell.borrowing_limit
    if limit is not None:
        own = cell.subtree - cell.local + limit - (beyond if beyond > 0 else 0)  # noqa: FURB136 - hot path
        if own < room:  # noqa: PLR1730 - hot path
            room = own
    return room - beyond if beyond < 0 else room


def potential(cell: Cell) -> int:
    """The most that could ever be used here: with nobody else using anything."""
    parent = cell.parent
    if parent is None:
        return cell.subtree
    most = cell.local + potential(parent)
    if cell.borrowing_limit is not None:
        return clamp(min(most, cell.subtree + cell.borrowing_limit))
    return clamp(most)


def borrows(cell: Cell, more: int = 0) -> bool:
    """Would the node use more than its own quota with `more` on top?"""
    quota = cell.subtree if cell.node.is_cohort else cell.nominal
    return quota < cell.usage + more


def borrow_level(cell: Cell, amount: int) -> tuple[int, bool]:
    """How far up the quota for `amount` must come from, and whether some subtree below the root could provide it.

    Level 0: the ClusterQueue's own quota. Else the height of the lowest cohort that has enough, or of the root.
    """
    parent = cell.parent
    if parent is None or not borrows(cell, amount):
        return 0, parent is not None
    rest = amount - max(0, cell.local - cell.usage)
    while True:
        above = parent.parent
        if parent.subtree >= parent.usage + rest:
            return parent.node.height, above is not None
        if above is None:
            return parent.node.height, False
        rest -= max(0, parent.local - parent.usage)
        parent = above


# --- changing ---------------------------------------------------------------------------------------------------------


def add_usage(cell: Cell, amount: int) -> None:
    """Count `amount` as used. What does not fit into the local part reaches the parent."""
    while True:
        beyond = cell.usage - cell.local
        cell.usage += amount
        if beyond < 0:
            amount += beyond
        parent = cell.parent
        if parent is None or amount <= 0:
            return
        cell = parent


def remove_usage(cell: Cell, amount: int) -> None:
    """The exact inverse of `add_usage`."""
    while True:
        beyond = cell.usage - cell.local
        cell.usage -= amount
        parent = cell.parent
        if parent is None or beyond <= 0:
            return
        if beyond < amount:  # noqa: PLR1730 - hot path
            amount = beyond
        cell = parent


# --- building ---------------------------------------------------------------------------------------------------------


def cell_of(node: Node, key: FlavorResource) -> Cell:
    """The node's cell for this pair, made on the way up to the root when it is not there yet."""
    cell = node.cells.get(key)
    if cell is None:
        cell = node.cells[key] = Cell(node, key)
        if node.parent is not None:
            cell.parent = cell_of(node.parent, key)
    return cell


def refresh(root: Node) -> None:
    """Compute the quotas and the usage of cohorts in this tree anew, after any quota or membership changed."""
    _gather(root)
    _spread_lendable(root)


def _gather(node: Node) -> None:
    """Bottom-up: cells that children need, subtree quotas, local parts, usage, heights."""
    for cohort in node.cohorts:
        _gather(cohort)
    children = [*node.cohorts, *node.queues]
    node.height = 1 + max(child.height for child in children) if children else 0
    for cell in node.cells.values():
        cell.subtree = cell.nominal
        if node.is_cohort:
            cell.usage = 0
            cell.quoted = cell.named
    for child in children:
        for key, below in child.cells.items():
            _set_local(below)
            own = node.cells.get(key)
            if own is None:
                own = node.cells[key] = Cell(node, key)
            below.parent = own
            own.quoted |= below.quoted
            own.subtree = add(own.subtree, below.subtree - below.local)
            own.usage += max(0, below.usage - below.local)
    if node.parent is None:
        for cell in node.cells.values():
            cell.parent = None
            _set_local(cell)


def _set_local(cell: Cell) -> None:
    if not cell.node.is_cohort:
        cell.subtree = cell.nominal
        cell.quoted = cell.named
    lend = cell.lending_limit
    cell.local = 0 if lend is None else max(0, cell.subtree - lend)


def _spread_lendable(node: Node) -> None:
    lendable: dict[str, int] = {}
    for key in [key for key, cell in node.root.cells.items() if cell.quoted]:
        lendable[key[1]] = add(lendable.get(key[1], 0), _potential_at(node, key))
    node.lendable = lendable
    for cohort in node.cohorts:
        _spread_lendable(cohort)


def _potential_at(node: Node, key: FlavorResource) -> int:
    """`potential`, also where nothing at or below the node has to do with the pair: then it is the parent's."""
    at: Node | None = node
    while at is not None:
        cell = at.cells.get(key)
        if cell is not None:
            return potential(cell)
        at = at.parent
    return 0
