"""Rings of processes in two network name spaces with a cable between them: two hosts, for Linux.

Everywhere else members are told that they are on several hosts; here they find out by themselves,
and the cable is really cut. To make name spaces needs root, so elsewhere this is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from real_jobs import Process

MEMBER = """
import asyncio, json, os, sys, zlib
import numpy as np
import aiops
from aiops.errors import CollectiveAborted

def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)

async def work():
    async with aiops.connect() as worker:
        ring = await worker.ring("r", timeout_s=60, insecure=True)
        array = np.empty(300_001, np.float32)
        start = np.arange(array.size, dtype=np.float32) / (3 + worker.rank)
        array[:] = start
        await ring.all_reduce(array)
        how = dict(transport=ring.transport, by=ring.explain("all_reduce", 300_001).algorithm)
        say("summed", rank=worker.rank, crc=zlib.crc32(array), **how)
        try:
            while True:
                array[:] = start
                await ring.all_reduce(array)
        except CollectiveAborted as error:
            say("aborted", kept=bool((array == start).all()), text=str(error))
        await ring.reform()
        array[:] = 1
        await ring.all_reduce(array)
        say("again", workers=ring.workers, transport=ring.transport, each=float(array.mean()))

aiops.run(work())
"""
HEARTBEAT_S = 0.2


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """Two name spaces, `left` and `right`, and the addresses of their ends of a cable."""

    def __init__(self) -> None:
        self.names = {side: f"aiops-{os.getpid()}-{side}" for side in ("left", "right")}
        self.addresses = {"left": "10.213.7.1", "right": "10.213.7.2"}

    def lay_cable(self) -> None:
        left, right = self.names.values()
        for name in self.names.values():
            ip("netns", "add", name)
        other_end = "peer", "name", "cable", "netns", right
        ip("-n", left, "link", "add", "cable", "type", "veth", *other_end)
        for side, name in self.names.items():
            ip("-n", name, "address", "add", f"{self.addresses[side]}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")

    def cut_cable(self) -> None:
        ip("-n", self.names["left"], "link", "set", "cable", "down")

    def remove(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def start(self, side: str, name: str, *command: str, **environment: str) -> Process:
        inside = ("ip", "netns", "exec", self.names[side])
        return Process(name, *command, inside=inside, AIOPS_NAME=name, **environment)

    def start_scheduler(self, workers: int, *options: str) -> Process:
        return self.start(
            *("left", "scheduler", "-m", "aiops", "scheduler", "--insecure"),
            *("--bind", f"{self.addresses['left']}:0", "--servers", "0"),
            *("--workers", str(workers), *options),
        )


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs Linux, the command ip, and root")
    hosts = Hosts()
    try:
        try:
            hosts.lay_cable()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network name spaces: {error.stderr!r}")
        yield hosts
    finally:
        hosts.remove()


def test_members_find_out_who_shares_their_host_and_a_host_that_is_cut_off_is_left_behind() -> None:
    running: list[Process] = []
    with two_hosts() as hosts:
        try:
            scheduler = hosts.start_scheduler(
                4, "--heartbeat-s", str(HEARTBEAT_S), "--on-worker-loss", "continue"
            )
            running.append(scheduler)
            address = scheduler.wait_for("ready")["address"]
            members: dict[str, list[Process]] = {"left": [], "right": []}
            for number in range(4):
                side = ("left", "right")[number % 2]
                member = hosts.start(
                    *(side, f"{side}-{number}", "-c", MEMBER), AIOPS_SCHEDULER=address
                )
                members[side].append(member)
                running.append(member)
            everybody = members["left"] + members["right"]
            summed = [member.wait_for("summed") for member in everybody]
            assert {line["transport"] for line in summed} == {"shared-memory+tcp"}
            assert {line["by"] for line in summed} == {"hierarchical"}
            assert len({line["crc"] for line in summed}) == 1
            ranks = sorted(line["rank"] for line in summed[:2])
            hosts.cut_cable()
            for member in members["left"]:
                aborted = member.wait_for("aborted")
                assert aborted["kept"]
                assert "no heartbeat for" in aborted["text"]
                again = member.wait_for("again")
                assert (again["workers"], again["transport"]) == (ranks, "shared-memory")
                assert again["each"] == 2.0
                assert member.end() == 0
        finally:
            for process in running:
                process.kill()


def test_a_built_in_training_in_a_ring_of_two_hosts() -> None:
    running: list[Process] = []
    with two_hosts() as hosts:
        try:
            running.append(hosts.start_scheduler(2))
            address = running[0].wait_for("ready")["address"]
            train = ("-m", "aiops", "train", "softmax", "--sync", "ring", "--steps", "5")
            for side in hosts.names:
                member = hosts.start(side, side, *train, "--insecure", "--scheduler", address)
                running.append(member)
            assert [process.end() for process in running] == [0, 0, 0]
        finally:
            for process in running:
                process.kill()
