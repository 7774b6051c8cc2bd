"""Executes schedules of all ranks over numpy arrays, and counts what was really sent."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiops.collective.steps import Combine, Schedule

Array = NDArray[Any]


class ScheduleRun:
    """Performs schedules in place; `messages` and `elements` count per sending rank.

    `rounds` is when the last rank is done, if each message takes one unit of time and each rank
    can send one and receive one at a time.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        arrays: Sequence[Array],
        operation: Callable[..., Any] = np.add,
    ) -> None:
        self.arrays = arrays
        self.operation = operation
        self.messages: Counter[int] = Counter()
        self.elements: Counter[int] = Counter()
        self.rounds = 0
        self._wires: dict[tuple[int, int], deque[tuple[int, int, int, Array]]] = {}
        self._perform([deque(schedule) for schedule in schedules])
        assert not any(self._wires.values()), "something was sent that nobody received"

    def _perform(self, left: list[deque[Any]]) -> None:
        clocks = [0] * len(left)
        sent = [False] * len(left)
        moved = True
        while moved:
            moved = False
            for rank, steps in enumerate(left):
                while steps:
                    step = steps[0]
                    if step.send is not None and not sent[rank]:
                        self._send(rank, step.send, clocks[rank] + 1)
                        sent[rank] = moved = True
                    arrival = 0
                    if step.receive is not None:
                        wire = self._wires.setdefault((step.receive.peer, rank), deque())
                        if not wire:
                            break
                        arrival = self._receive(rank, step, wire.popleft())
                    clocks[rank] = max(clocks[rank] + 1, arrival)
                    steps.popleft()
                    sent[rank], moved = False, True
        assert not any(left), f"stuck: {[steps[0] for steps in left if steps]}"
        self.rounds = max(clocks, default=0)

    def _send(self, rank: int, transfer: Any, clock: int) -> None:
        peer, begin, end = transfer
        assert peer != rank
        assert 0 <= begin <= end <= self.arrays[rank].size
        self.messages[rank] += 1
        self.elements[rank] += end - begin
        content = self.arrays[rank][begin:end].copy()
        self._wires.setdefault((rank, peer), deque()).append((begin, end, clock, content))

    def _receive(self, rank: int, step: Any, message: tuple[int, int, int, Array]) -> int:
        begin, end, clock, content = message
        assert step.receive[1:] == (begin, end), "the two ends do not mean the same elements"
        own = self.arrays[rank][begin:end]
        match step.combine:
            case Combine.REPLACE:
                own[...] = content
            case Combine.INCOMING_FIRST:
                own[...] = self.operation(content, own)
            case Combine.OWN_FIRST:
                own[...] = self.operation(own, content)
        return clock
