"""History files: what is written is read back, and what is no history is said to be none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import DataError
from aiops.testing.history import check, verify
from aiops.testing.history.explain import Candidate, explain
from aiops.testing.history.format import decode, encode
from aiops.testing.history.run import read_runs
from history_builder import Author, run_of
from history_model import Model


@given(st.integers(0, 2**32))
def test_every_line_is_read_as_it_was_written(seed: int) -> None:
    model = Model(seed)
    model.run()
    for author in model.authors:
        for event in author.events:
            line = encode(event)
            assert line.endswith(b"\n")
            assert line.count(b"\n") == 1
            assert decode(line) == event


def test_a_folder_is_checked_job_by_job(tmp_path: Path) -> None:
    """A second run into the same folder does not mix with the first."""
    for job in ("aa11", "bb22"):
        for rank in (0, 1):
            author = Author(rank)
            author.header.job = job
            author.push(1 + rank, 9, [1, 0, 0, 0], 1 + rank)
            author.write(tmp_path)
    verdicts = verify(tmp_path)
    assert [(verdict.job, verdict.workers, verdict.holds) for verdict in verdicts] == [
        ("aa11", 2, True),
        ("bb22", 2, True),
    ]


def test_the_line_that_a_killed_worker_was_writing_is_left_out(tmp_path: Path) -> None:
    author = Author()
    author.push(1, 2, [1, 0, 0, 0], 1)
    author.push(3, 4, [0, 1, 0, 0], 2)
    path = author.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    (run,) = read_runs(path)
    assert [operation.outcome for operation in run.operations] == ["ok", "unknown"]
    assert check(run).holds


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b'{"loss": 0.3}\n', ":1: not a line of a history"),
        (b"\xff\xfe\n", ":1: not a line of a history"),
        (b'{"type":"closed","at":1,"clean":true}\n', "its first line is no header"),
        (
            b'{"type":"history","at":1,"format":99,"job":"j","worker":0,"incarnation":1,'
            b'"name":"w","host":"h"}\n',
            "has format 99",
        ),
    ],
)
def test_what_is_no_history_is_said_to_be_none(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint) as raised:
        verify(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"type":"end","at":1,"op":7,"outcome":"ok"}', "operation 7 is not under way"),
        (b'{"type":"invoke","at":1,"op":1,"kind":"pull","table":9}', "table 9 was not opened"),
        (
            b'{"type":"invoke","at":1,"op":1,"kind":"tick"}\n'
            b'{"type":"end","at":2,"op":1,"outcome":"ok","parts":[["ok"]]}',
            "1 answers to 0 parts",
        ),
        (
            b'{"type":"history","at":1,"format":1,"job":"j","worker":0,"incarnation":1,'
            b'"name":"w","host":"h"}',
            "a second header",
        ),
    ],
)
def test_lines_that_do_not_fit_together_are_named(
    tmp_path: Path, line: bytes, complaint: str
) -> None:
    path = Author().write(tmp_path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=rf"jsonl:\d: {complaint}"):
        verify(tmp_path)


def test_a_folder_without_a_history_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no history"):
        verify(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        verify(tmp_path / "nowhere.jsonl")


def test_a_missing_history_is_noticed() -> None:
    """Then nothing can be said about pushes that nobody seems to have made."""
    one = Author(0, members=[0, 1])
    one.push(1, 2, [1, 0, 0, 0], 1)
    one.pull(3, 4, 2, [1, 0, 0, 9])
    run = run_of(one)
    assert run.missing() == ["worker 1 (incarnation 1)"]
    verdict = check(run)
    assert verdict.violations == []
    assert any("no history of worker 1" in note for note in verdict.notes)
    restarted = run_of(Author(0, incarnation=3))
    assert len(restarted.missing()) == 2


# --- which uncertain pushes explain what was seen ---


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=3, max_size=3), st.booleans())),
    st.data(),
)
def test_an_explanation_exists_where_there_is_one(
    pushes: list[tuple[list[int], bool]], data: st.DataObject
) -> None:
    inside = [needed or data.draw(st.booleans()) for _, needed in pushes]
    amounts = [np.array(amount, np.float64) for amount, _ in pushes]
    total = sum((a for a, is_in in zip(amounts, inside, strict=True) if is_in), np.zeros(3))
    candidates = [
        Candidate(amount, needed) for amount, (_, needed) in zip(amounts, pushes, strict=True)
    ]
    count = data.draw(st.sampled_from([None, sum(inside)]))
    explanation = explain(total, candidates, count)
    assert explanation.wrong is None
    assert not explanation.miscounted
    for found, truth in zip(explanation.inside, inside, strict=True):
        assert found in (truth, None) or len(candidates) > 1


def test_what_nothing_explains_is_located() -> None:
    one = Candidate(np.array([1.0, 0, 0]), needed=False)
    assert explain(np.array([1.0, 0, 2]), [one], None).wrong == (2, 2.0)
    assert explain(np.array([2.0, 0, 0]), [one], None).wrong == (0, 1.0)
    assert explain(np.array([1.0, 0, 0]), [one], 0).miscounted
    certain = Candidate(np.array([0, 5.0, 0]), needed=True)
    assert explain(np.zeros(3), [certain], None).wrong == (1, -5.0)
