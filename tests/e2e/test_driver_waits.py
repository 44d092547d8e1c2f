"""How a client bears with what is away: no yard is needed for that."""

import time

import pytest

ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")

from rollyard import errors, flow, session  # noqa: E402

YARD_LOST, NODE_LOST = errors.make("yard_lost", "gone"), errors.make("node_lost", "away")


def borne(patience, clock, error):
    """Seconds until it is raised."""
    began = clock[0]
    with pytest.raises(type(error)):
        while True:
            clock[0] += patience.pause(error)
    return clock[0] - began


def test_the_yard_and_its_node_have_each_a_time_of_their_own(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(flow.time, "monotonic", lambda: clock[0])
    assert borne(flow.Patience(), clock, YARD_LOST) == flow.RESEND_SECONDS_MAX
    assert borne(flow.Patience(with_nodes=True), clock, NODE_LOST) == flow.NODE_AWAY_SECONDS_MAX
    # It came back in the last moment, and its node takes a while.
    patience = flow.Patience(with_nodes=True)
    back_at = clock[0] + flow.RESEND_SECONDS_MAX - 5
    while clock[0] < back_at:
        clock[0] += patience.pause(YARD_LOST)
    assert borne(patience, clock, NODE_LOST) == flow.NODE_AWAY_SECONDS_MAX
    # A node that is away is an answer to whoever did not ask for more.
    with pytest.raises(ry.SandboxGone):
        flow.Patience().pause(NODE_LOST)


class Yard:
    """A client whose renewals of some sandboxes fail."""

    def __init__(self, away):
        self.away, self.asked = away, []
        self._renewals = session.Renewals(self)

    def _run(self, steps):
        sandbox = next(steps).request.sandbox
        self.asked.append((sandbox, time.monotonic()))
        if sandbox in self.away:
            raise self.away[sandbox]

    def times(self, sandbox):
        return [at for name, at in self.asked if name == sandbox]


def held(yard, *names, ttl):
    told = (session.wire.Session(sandbox=f"{name}@n", rollout="j-g0-s0", claim="c") for name in names)
    return [session.Session(yard, one, ttl) for one in told]


def waits(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "a hang guard"
        time.sleep(0.01)


def test_claims_are_renewed_past_a_node_that_is_dead(monkeypatch):
    """Its own claim is given up when it would have ended, and no other waits for that."""
    yard = Yard({"dead@n": NODE_LOST, "lost@n": errors.make("claim_lost", "another's")})
    first, dead, lost = held(yard, "first", "dead", "lost", ttl=0.6)
    waits(lambda: len(yard.times("first@n")) >= 10)
    assert len(yard.times("lost@n")) == 1, "an answer: there is nothing to renew"
    times = yard.times("dead@n")
    # Three times in 0.6 s, and once more to see that it has lapsed.
    assert 2 <= len(times) <= 5, times
    assert dead not in yard._renewals._due and lost not in yard._renewals._due and first in yard._renewals._due
    # One that comes back is renewed on.
    yard.away = {"back@n": NODE_LOST}
    (back,) = held(yard, "back", ttl=3)
    waits(lambda: yard.times("back@n"))
    yard.away = {}
    waits(lambda: len(yard.times("back@n")) >= 3)
    assert back in yard._renewals._due
    yard._renewals.close()
