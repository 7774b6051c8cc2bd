"""Values in messages: known again, on one line, and short whatever was passed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiops
from aiops.checks import check_name
from aiops.errors import ConfigError
from aiops.wording import LISTED_MAX, SHOWN_CHARACTERS_MAX, listed, shown

anything = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Unspeakable:
    def __repr__(self) -> str:
        raise ArithmeticError


@settings(max_examples=30)
@given(anything)
def test_what_is_short_is_said_as_it_is(value: object) -> None:
    text = repr(value)
    if len(text) <= SHOWN_CHARACTERS_MAX and text == " ".join(text.split()):
        assert shown(value) == text
    else:
        assert len(shown(value)) <= SHOWN_CHARACTERS_MAX + 30


def test_what_is_long_is_cut_and_its_size_said() -> None:
    assert shown("x" * 10**7).endswith("... (10,000,000 long)")
    assert shown(b"x" * 300).endswith("... (300 long)")
    assert shown(list(range(10**5))).endswith("...")
    assert "\n" not in shown(np.ones((3, 3)))
    assert shown(10**5000) == "<int>"
    assert shown(Unspeakable()) == "<Unspeakable>"


@given(st.lists(st.integers(0, 9), max_size=3 * LISTED_MAX))
def test_a_list_says_all_or_how_many_more(names: list[int]) -> None:
    text = listed(names, "; ")
    said = text.split("; ")
    assert len(said) <= LISTED_MAX + 1
    more = int(said.pop().split()[1]) if "and" in text else 0
    assert len(said if names else []) + more == len(names)
    assert [int(name) for name in said if names] == names[: len(names) - more]


LONG = "x" * 10**6


@pytest.mark.parametrize(
    "call",
    [
        lambda: aiops.connect(LONG),
        lambda: check_name(LONG, "the name"),
        lambda: aiops.BSP(reduce=LONG),  # type: ignore[arg-type]
        lambda: aiops.optim.SGD(lr=LONG),  # type: ignore[arg-type]
        lambda: aiops.compression.codec_from(LONG),
    ],
)
def test_no_error_is_as_long_as_what_was_passed(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert len(str(caught.value)) < 1000
