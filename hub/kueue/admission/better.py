"""Three rules of ours where Kueue's decisions go round in circles or let somebody wait for ever.

They are on with `Policy.rules == "hub"`. docs/differences.md tells them with an example each.

claim       A workload that preempts the same one for the fourth time goes first, so that the victim cannot take its old
            place again before the one that it made room for.
no rematch  After the sixth time, each within ten minutes of the last, the victim is safe from that preemptor. There are finitely many pairs, so
            preemption ends, and with nothing arriving every state settles.
patience    Room that a head without candidates merely waits for, and a head that keeps returning without a decision, stand
            in nobody's way for longer than five minutes.
"""

from hub.kueue.admission.policy import Policy
from hub.kueue.admission.records import Work
from hub.kueue.api.meta import Instant, ObjectKey

CLAIM_AFTER = 4
REMATCHES_MAX = 6
#: Preemptions further apart than this are not one and the same quarrel.
QUARREL_S = 600.0
PATIENCE_S = 300.0
#: The engine asks to be called when patience ends. Not being called for longer than this means that nobody was waiting for
#: a decision: the count starts again.
LONGEST_GAP_S = 2 * PATIENCE_S

_NOBODY: frozenset[ObjectKey] = frozenset()


def note_preemption(work: Work, victim: Work, now: Instant) -> None:
    """`work` preempts `victim` now."""
    if work.quarrels is None:
        work.quarrels = {}
    count, last = work.quarrels.get(victim.key, (0, now))
    work.quarrels[victim.key] = (count + 1 if now - last <= QUARREL_S else 1, now)


def has_claim(policy: Policy, work: Work, now: Instant) -> bool:
    """Does it go before everybody else of its tree?"""
    if work.quarrels is None or policy.rules != "hub":
        return False
    return any(count >= CLAIM_AFTER and now - last <= QUARREL_S for count, last in work.quarrels.values())


def safe_from(policy: Policy, work: Work, now: Instant) -> frozenset[ObjectKey]:
    """Whom it may not preempt any more."""
    if work.quarrels is None or policy.rules != "hub":
        return _NOBODY
    return frozenset(
        key for key, (count, last) in work.quarrels.items() if count >= REMATCHES_MAX and now - last <= QUARREL_S
    )


def has_waited_enough(policy: Policy, work: Work, now: Instant) -> bool:
    """Has it come back without a decision for so long that nobody may stand in its way, nor it in anybody's?"""
    if policy.rules != "hub" or work.stuck is None:
        return False
    since, last = work.stuck
    return now - since >= PATIENCE_S and now - last <= LONGEST_GAP_S
