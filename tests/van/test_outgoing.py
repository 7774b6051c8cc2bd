"""The queue of unsent bytes against a plain byte string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiops.van.outgoing import Outgoing

steps = st.lists(
    st.one_of(
        st.tuples(st.just("gather"), st.binary(max_size=20)),
        st.tuples(st.just("append"), st.binary(max_size=20)),
        st.tuples(st.just("lend"), st.binary(max_size=20)),
        st.tuples(st.just("send"), st.integers(1, 60)),
        st.tuples(st.just("own"), st.none()),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=30,
)


@given(steps)
def test_what_goes_in_comes_out(script: list[tuple[str, bytes | int | None]]) -> None:
    """In order, none twice, none lost; and what was copied does not change with its source."""
    queue = Outgoing()
    expected = b""
    for step, argument in script:
        if isinstance(argument, bytes):
            source = bytearray(argument)
            if step == "gather":
                queue.gather(source)
            else:
                queue.append(source, borrowed=step == "lend")
            expected += argument
            if step != "lend":
                source[:] = b"?" * len(source)
                source.clear()  # nor is it looked at any more
        elif isinstance(argument, int):
            taken = b"".join(bytes(chunk) for chunk in queue.chunks(3))[:argument]
            assert expected.startswith(taken)
            assert taken or not expected
            queue.advance(len(taken))
            expected = expected[len(taken) :]
        elif step == "own":
            queue.own()
        else:
            queue.clear()
            expected = b""
        assert queue.size == len(expected)
        assert b"".join(bytes(chunk) for chunk in queue.chunks(1000)) == expected


def test_own_copies_only_what_is_left() -> None:
    queue = Outgoing()
    lent = bytearray(b"abcdef")
    queue.gather(b"12")
    queue.append(memoryview(lent), borrowed=True)
    queue.advance(4)
    queue.own()
    lent[:] = b"??????"
    lent.clear()
    assert b"".join(queue.chunks(9)) == b"cdef"


def test_a_view_of_other_items_counts_in_bytes() -> None:
    queue = Outgoing()
    numbers = memoryview(bytearray(b"abcdefgh")).cast("I")
    queue.gather(numbers)
    queue.append(numbers, borrowed=True)
    assert queue.size == 16
    queue.advance(9)
    assert b"".join(bytes(chunk) for chunk in queue.chunks(9)) == b"bcdefgh"
