"""Sessions of many workers, and of several customers of each, are never taken for each other.

ps-lite keys a repeat by one byte of the sender and by a number that each customer counts from 0:
worker 128 is worker 0 to its servers, and two customers of one process collide at once.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from aiops.roles.actions import Drop, Send
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Push, Reject
from served import Served

WORKERS = 200
CUSTOMERS = 2
PUSHES = 3


@pytest.mark.parametrize("seed", range(3))
def test_the_repeats_of_200_workers_never_hide_the_push_of_another(seed: int) -> None:
    rng = random.Random(seed)
    served = Served(WORKERS * CUSTOMERS, workers=(), consistency="asp")
    peers = iter(range(1, 10_000))

    def connect(rank: int, customer: int) -> int:
        peer = next(peers)
        served.core.connected(peer, rank, 1, customer + 1)
        return peer

    peer_of = {
        (rank, customer): connect(rank, customer)
        for rank in range(WORKERS)
        for customer in range(CUSTOMERS)
    }
    sends = [(who, seq) for who in peer_of for seq in range(1, PUSHES + 1)] * 3
    rng.shuffle(sends)
    for (rank, customer), seq in sends:
        if rng.random() < 0.2:  # over another connection from now on
            peer_of[rank, customer] = connect(rank, customer)
        place = rank * CUSTOMERS + customer
        push = Push(
            request_id=seq,
            seq=seq,
            answered_below=1,
            table=1,
            session=customer,
            begin=place,
            end=place + 1,
            payload=np.ones(1, np.float32).tobytes(),
        )
        *drops, answer = served.core.request(peer_of[rank, customer], push, 0.0)
        assert all(isinstance(drop, Drop) for drop in drops)
        assert isinstance(answer, Send)
        assert isinstance(answer.frame, Ack)
    assert (served.values == PUSHES).all()
    served.core.validate()


def test_a_session_that_its_connection_has_not_announced_is_refused() -> None:
    served = Served(4, workers=(), consistency="asp")
    served.core.connected(1, 0, 1, 2)
    for session, fine in ((0, True), (1, True), (2, False)):
        push = Push(
            request_id=1,
            seq=1,
            answered_below=1,
            table=1,
            session=session,
            begin=0,
            end=4,
            payload=bytes(16),
        )
        (answer,) = served.core.request(1, push, 0.0)
        assert isinstance(answer, Send)
        assert isinstance(answer.frame, Ack) is fine
        if isinstance(answer.frame, Reject):
            assert answer.frame.status == ErrorCode.OUT_OF_WINDOW
