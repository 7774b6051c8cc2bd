"""When a lost connection is opened again: at once at first, and never too often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.retries import BURST, PAUSE_S_MAX, PER_ANSWER, PER_S, Retries

CHANCES = st.floats(0.0, 1.0)


def test_after_answers_the_first_one_is_free() -> None:
    retries = Retries(0.0)
    assert retries.pause_s(1.0, answers=3, chance=1.0) == 0.0
    assert retries.reconnections == 1


def test_connections_without_an_answer_wait_longer_and_longer_up_to_a_bound() -> None:
    retries, now, pauses = Retries(0.0), 0.0, []
    for _ in range(20):
        now += 100.0  # the budget is full each time
        pauses.append(retries.pause_s(now, answers=0, chance=1.0))
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.1
    assert pauses[-1] == PAUSE_S_MAX


@given(st.lists(CHANCES, min_size=5, max_size=5))
def test_any_part_of_a_pause_may_be_drawn(chances: list[float]) -> None:
    full, drawn = Retries(0.0), Retries(0.0)
    for chance in chances:
        assert drawn.pause_s(0.0, 0, chance) == chance * full.pause_s(0.0, 0, 1.0)


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 30), CHANCES), min_size=1, max_size=200)
)
def test_there_are_never_more_than_the_budget_pays_for(
    losses: list[tuple[float, int, float]],
) -> None:
    """Whatever breaks the connections, and however soon each of them does."""
    retries, now, answers = Retries(0.0), 0.0, 0
    for count, (lived_s, more, chance) in enumerate(losses, 1):
        now += lived_s
        answers += more
        now += retries.pause_s(now, answers, chance)
        assert count <= BURST + PER_S * now + PER_ANSWER * answers + 1e-6
