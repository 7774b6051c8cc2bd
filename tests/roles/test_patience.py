"""When a silent connection is given up: never while anything moves, nor while nobody answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.parking import NOTICE_S
from aiops.roles.patience import LOOK_S, NOTICES_MISSING, Patience, Sight, Step
from aiops.roles.round_trips import RTO_S_MAX, RTO_S_MIN

RTOS = st.floats(RTO_S_MIN, RTO_S_MAX)
CHANCES = st.floats(0.0, 1.0)


class Watch:
    """Looks as the runtime does, and answers probes by `server`: bytes it has, or None for none."""

    def __init__(self, rto_s: float, chance: float = 1.0) -> None:
        self.patience = Patience(lambda: chance)
        self.patience.begin(0.0)
        self.rto_s = rto_s
        self.now = 0.0
        self.moved = 0
        self.steps: list[Step] = []

    def run(
        self,
        seconds: float,
        *,
        server: object = None,
        moves_every_s: float = 1e9,
        owed: bool = True,
        waits: bool = True,
    ) -> Watch:
        until, moves_at = self.now + seconds, self.now + moves_every_s
        while self.now < until and Step.REPLACE not in self.steps:
            if self.now >= moves_at:
                moves_at += moves_every_s
                self.moved += 1
            step = self.patience.look(Sight(self.moved, owed, waits, self.rto_s), self.now)
            if step is not Step.NOTHING:
                self.steps.append(step)
            if step is Step.PROBE:
                received = next(server) if server is not None else None  # type: ignore[call-overload]
                if received is None:
                    self.patience.probe_failed(self.now)
                elif self.patience.probe_answered(received, self.now) is Step.REPLACE:
                    self.steps.append(Step.REPLACE)
            self.now += LOOK_S
        return self


def always(received: int) -> object:
    """A server that answers each probe, and gets no further bytes."""
    return iter([received] * 1000)


@given(RTOS, CHANCES)
def test_a_dead_connection_to_a_server_that_answers_is_replaced(
    rto_s: float, chance: float
) -> None:
    """After it was asked and probed twice: three silent RTOs at least, seven at most."""
    watch = Watch(rto_s, chance).run(1000, server=always(500))
    assert watch.steps == [Step.ASK, Step.PROBE, Step.PROBE, Step.REPLACE]
    doubled = sum(min(n * rto_s, RTO_S_MAX) for n in (1, 2, 4))
    assert 3 * rto_s - 1e-6 <= watch.now <= doubled + 5 * LOOK_S


@given(RTOS, CHANCES)
def test_a_connection_is_never_replaced_while_the_server_does_not_answer(
    rto_s: float, chance: float
) -> None:
    """There would be nobody to send anything to; and what is held up may still arrive."""
    watch = Watch(rto_s, chance).run(600)
    assert Step.REPLACE not in watch.steps
    assert Step.PROBE in watch.steps
    probes = watch.steps.count(Step.PROBE)
    assert probes <= 8 + 600 / min(rto_s, RTO_S_MAX), "its pauses grow"


@given(RTOS, CHANCES, st.floats(0.1, 0.99))
def test_nothing_is_asked_of_a_connection_that_moves_within_the_rto(
    rto_s: float, chance: float, part: float
) -> None:
    watch = Watch(rto_s, chance).run(100, server=always(500), moves_every_s=part * rto_s)
    slack = (1 - part) * rto_s <= LOOK_S  # what moves between two looks is seen at the next
    assert watch.steps == [] or (slack and Step.REPLACE not in watch.steps)


@given(RTOS, CHANCES)
def test_what_the_server_still_gets_moves_though_this_side_cannot_see_it(
    rto_s: float, chance: float
) -> None:
    """A tunnel takes everything at once and delivers it slowly."""
    watch = Watch(rto_s, chance).run(300, server=iter(range(1, 10_000)))
    assert Step.REPLACE not in watch.steps
    watch.run(1000, server=always(10_000))
    assert watch.steps[-1] is Step.REPLACE


def test_a_server_that_has_no_such_connection_ends_the_matter() -> None:
    watch = Watch(RTO_S_MIN).run(10, server=always(0))
    assert watch.steps == [Step.ASK, Step.PROBE, Step.REPLACE]


@given(RTOS, CHANCES)
def test_for_what_waits_by_rule_no_rto_runs_while_notices_come(rto_s: float, chance: float) -> None:
    watch = Watch(rto_s, chance).run(100, owed=False, moves_every_s=NOTICE_S + LOOK_S)
    assert watch.steps == []
    watch.run((NOTICES_MISSING - 2) * NOTICE_S, owed=False)
    assert watch.steps == []
    watch.run(1000, owed=False, server=always(500))
    assert watch.steps[-1] is Step.REPLACE, "without its notices it is as dead as any other"


def test_nothing_is_asked_where_nothing_is_unanswered() -> None:
    assert Watch(RTO_S_MIN).run(100, owed=False, waits=False).steps == []


@given(RTOS)
def test_movement_while_a_probe_is_under_way_makes_its_answer_mean_nothing(rto_s: float) -> None:
    patience = Patience(lambda: 0.0)
    patience.begin(0.0)
    silent = Sight(5, True, True, rto_s)
    steps = [patience.look(silent, n * rto_s) for n in range(6)]
    assert steps[-1] is Step.NOTHING, "one probe at a time"
    patience.look(silent._replace(moved=6), 7 * rto_s)
    assert patience.probe_answered(0, 7.1 * rto_s) is Step.NOTHING
    assert patience.silent_s(7.1 * rto_s) < 0.2 * rto_s


@given(RTOS, CHANCES, st.floats(0.0, 3600.0), st.floats(0.1, 6.0))
def test_the_time_in_which_nobody_looked_does_not_count(
    rto_s: float, chance: float, late_s: float, part: float
) -> None:
    """Nor does it begin anew: a machine that is always a little late must notice, too."""
    straight = Watch(rto_s, chance).run(1000, server=always(500))
    watch = Watch(rto_s, chance)
    watch.run(part * rto_s, server=(server := always(500)))
    watch.now += late_s
    watch.patience.excuse(late_s)
    watch.run(1000, server=server)
    assert watch.steps == straight.steps
    assert abs(watch.now - late_s - straight.now) < 3 * LOOK_S or part > 3
