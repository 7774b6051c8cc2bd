"""Errors of aiops travel between processes: `pickle` keeps class, message and facts."""

from __future__ import annotations

import copy
import pickle

import pytest

import aiops.errors
from aiops.errors import AiopsError, BarrierTimeout, CollectiveAborted, rejection
from aiops_protocol.errors import ErrorCode, HandshakeRefused

EXAMPLES = [
    rejection(int(code), f"server 1: {code.name} of table w")
    for code in ErrorCode
] + [
    BarrierTimeout("barrier z: 2 missing", operation="barrier", elapsed_s=3.0, missing=["a", "b"]),
    CollectiveAborted("it ended", ring="r", operation="all_reduce", cause="lost", lost=(1, 3)),
    aiops.errors.CollectiveTimeout("late", ring="r", operation="barrier", cause="timeout"),
    aiops.errors.RequestTimeout("push: no answer", operation="push", elapsed_s=60.0),
    aiops.errors.DialFailed("refused", peer="127.0.0.1:1", retryable=True, refused=True),
    aiops.errors.NodeFailed("worker 2 is lost", node="worker 2 (w)"),
]  # fmt: skip


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: str(error)[:40])
@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_an_error_is_the_same_in_another_process(error: AiopsError, again: object) -> None:
    error.add_note("in epoch 3")
    other = again(error)  # type: ignore[operator]
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_every_class_of_errors_is_among_the_examples_or_takes_a_message_alone() -> None:
    """So that a new one with facts of its own cannot be forgotten here."""
    known = {type(error) for error in EXAMPLES}
    for name in aiops.errors.__all__:
        kind = getattr(aiops.errors, name)
        if isinstance(kind, type) and kind not in known:
            try:
                error = kind("alone")
            except TypeError:
                continue  # a base with facts: its children are examples
            assert str(pickle.loads(pickle.dumps(error))) == "alone"


def test_a_refused_handshake_keeps_its_reason() -> None:
    error = pickle.loads(pickle.dumps(HandshakeRefused("no", ErrorCode.NAME_IN_USE)))
    assert (str(error), error.message, error.reason) == ("no", "no", ErrorCode.NAME_IN_USE)
