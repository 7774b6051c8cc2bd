"""Rings as somebody uses them for the first time: what is wrong is said at once, in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.errors import (
    AiopsError,
    BarrierTimeout,
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    ConfigError,
    UsageError,
)
from aiops.runtime.postoffice import Postoffice
from aiops.workers.ring import Ring
from local_jobs import local_job, together, until

TRANSPORTS = ("tcp", "shared-memory")


async def two(member: Callable[[Ring], Any], transport: str = "tcp") -> list[Any]:
    """Run a function as both members of a ring."""

    async def work(worker: aiops.Worker) -> Any:
        return await member(
            await worker.ring("r", timeout_s=10, call_timeout_s=10, transport=transport)
        )

    async with local_job(servers=0) as cluster:
        return await cluster.run(work, workers=2)


def ones(count: int = 3, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


def frozen() -> Any:
    array = ones()
    array.flags.writeable = False
    return array


def zero_strides() -> Any:
    return np.lib.stride_tricks.as_strided(ones(1), (3,), (0,))


ANY = "all_reduce reduce_scatter all_gather broadcast"
WRONG: list[tuple[str, Callable[[], Any], dict[str, Any], str]] = [
    (ANY, lambda: ones(dtype=np.int64), {}, r"int64.*astype"),
    (ANY, lambda: ones(dtype=np.float16), {}, r"float16.*astype"),
    (ANY, lambda: ones(dtype=bool), {}, r"bool.*astype"),
    (ANY, lambda: ones(dtype=complex), {}, r"complex128.*float32"),
    (ANY, lambda: ones(dtype=object), {}, r"object.*float32"),
    (ANY, lambda: ones(dtype=">f4"), {}, r">f4.*byte order"),
    (ANY, lambda: np.ma.masked_array(ones(), mask=[True, False, False]), {}, "masked"),
    (ANY, lambda: 1.0, {}, "float"),
    (ANY, lambda: None, {}, "NoneType"),
    (ANY, lambda: "weights", {}, "str"),
    ("all_reduce broadcast", frozen, {}, "read-only"),
    ("all_reduce broadcast", zero_strides, {}, "more than once in memory"),
    ("all_reduce", lambda: {"w": ones()}, {}, "dict"),
    ("all_reduce", lambda: [ones(), [1.0, 2.0]], {}, "list"),
    ("all_reduce", lambda: [ones(), ones(dtype=np.int32)], {}, "int32"),
    ("all_reduce reduce_scatter", ones, {"op": "product"}, "'product'.*sum, mean, max, min"),
    ("all_reduce reduce_scatter", ones, {"op": ["sum"]}, r"\['sum'\].*sum, mean"),
    ("all_reduce reduce_scatter", ones, {"op": None}, "None.*sum, mean"),
    ("all_reduce reduce_scatter", ones, {"order": "random"}, "'random'.*any"),
    ("all_reduce", ones, {"order": "rank", "algorithm": "tree"}, "leave it out"),
    (ANY, ones, {"algorithm": "magic"}, "magic"),
    (ANY, ones, {"algorithm": None}, "None"),
    (ANY, ones, {"algorithm": ["ring"]}, r"algorithm is \['ring'\]; it is a word"),
    (ANY, ones, {"timeout_s": 0}, "timeout"),
    (ANY, ones, {"timeout_s": float("nan")}, "timeout"),
    (ANY, ones, {"timeout_s": "soon"}, "timeout"),
    ("broadcast", ones, {"root": 2}, "root is 2; ranks are 0 to 1"),
    ("broadcast", ones, {"root": -1}, "root is -1"),
    ("broadcast", ones, {"root": 0.5}, "root is 0.5"),
    ("broadcast", ones, {"root": "0"}, "root is '0'"),
    ("broadcast", ones, {"root": True}, "root is True; ranks are 0 to 1"),
    ("all_reduce", ones, {"compression": "zip"}, "zip"),
    ("all_reduce", lambda: ones(dtype=np.float64), {"compression": "fp16"}, "float32"),
    ("all_reduce", lambda: ones() * np.nan, {"compression": "fp16"}, "finite"),
    ("all_reduce_async", ones, {"bucket_bytes": 0}, "bucket_bytes is 0"),
    ("all_reduce_async", ones, {"bucket_bytes": True}, "bucket_bytes is True"),
    ("all_reduce_async", ones, {"bucket_bytes": "1 MB"}, "bucket_bytes is '1 MB'"),
    ("all_reduce_async", ones, {"timeout_s": -1.0}, "timeout"),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_wrong_is_said_before_anything_is_sent(transport: str) -> None:
    """Only one member is wrong, so that the other would see what has got through."""
    cases = [(kind, *case[1:]) for case in WRONG for kind in case[0].split()]

    async def member(ring: Ring) -> None:
        for kind, make, options, words in cases if ring.rank else ():
            if "compression" in options and transport != "tcp":
                continue
            case = f"{kind}({make()!r}, {options})"
            try:
                with pytest.raises((UsageError, ConfigError), match=words):
                    await getattr(ring, kind)(make(), **options)
            except BaseException as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
        array = ones()
        await ring.all_reduce(array)
        assert (array == 2).all()
        assert ring.generation == 1

    await two(member, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_unusual_works(transport: str) -> None:
    """Every layout and size, and what is no number, gives what numpy gives."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)

    def cases() -> dict[str, Any]:
        return {
            "0-d": np.array(3.0, np.float32),
            "empty": np.empty(0, np.float32),
            "empty of two axes": np.empty((3, 0), np.float64),
            "one": np.ones(1, np.float64),
            "columns": np.asfortranarray(base.copy()),
            "every other": base.copy()[::2, ::3],
            "backwards": base.copy()[::-1],
            "transposed": base.copy().T,
            "matrix": base.copy().view(np.matrix),
            "view of a file's bytes": np.frombuffer(bytearray(base.tobytes()), np.float32),
            "nan and infinity": np.array([np.nan, np.inf, -np.inf, -0.0], np.float32),
            "unaligned": np.frombuffer(bytearray(101), np.uint8)[1:].view(np.float32),
        }

    async def member(ring: Ring) -> None:
        with np.errstate(invalid="ignore"):
            for name, array in cases().items():
                expected = np.asarray(cases()[name]) * 2
                await ring.all_reduce(array)
                assert np.array_equal(np.asarray(array), expected, equal_nan=True), name
                whole = await ring.all_gather(cases()[name])
                assert whole.shape == (2, *array.shape), name
                chunk = await ring.reduce_scatter(cases()[name])
                low, high = (array.size * (ring.rank + i) // 2 for i in (0, 1))
                flat = np.asarray(expected).reshape(-1)[low:high]
                assert np.array_equal(chunk, flat, equal_nan=True), name
                given = cases()[name] if ring.rank else np.zeros_like(cases()[name])
                await ring.broadcast(given, root=1)
                original = np.asarray(cases()[name])
                assert np.array_equal(np.asarray(given), original, equal_nan=True), name
        await ring.all_reduce([])
        await ring.all_reduce_async(())
        twice = ones()
        await ring.all_reduce(one for one in [twice, ones(2), ones(0)])  # type: ignore[arg-type]
        assert (twice == 2).all()
        await ring.broadcast(twice, root=np.int64(1))  # type: ignore[arg-type]

    await two(member, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_list_of_nothing_is_a_call_like_any_other(transport: str) -> None:
    """Otherwise the calls of the two would be off by one, and nobody told."""

    async def member(ring: Ring) -> None:
        with pytest.raises(CollectiveMismatch, match=r"no arrays"):
            await ring.all_reduce([ones()] if ring.rank else [])

    await two(member, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_comes_late_to_a_call_in_which_others_differ_hears_the_same(
    transport: str,
) -> None:
    async def work(worker: aiops.Worker) -> None:
        ring = await worker.ring("r", timeout_s=10, call_timeout_s=10, transport=transport)
        await ring.barrier()
        if ring.rank == 2 and transport == "tcp":  # memory is compared when all have come
            await until(lambda: ring.broken)
        with pytest.raises(CollectiveMismatch, match=r"worker 1 \(worker-1\)"):
            await ring.all_reduce(ones(3 + (ring.rank == 1)))
        with pytest.raises(CollectiveAborted, match="formed anew"):
            await ring.barrier()
        await ring.reform()
        await ring.barrier()

    async with local_job(servers=0) as cluster:
        await cluster.run(work, workers=3)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_leaves_in_the_middle_can_come_back(transport: str) -> None:
    async def member(ring: Ring) -> None:
        array = np.full(200_000, 7, np.float32)
        if ring.rank:
            await ring.leave()
            await ring.leave()
        said = (
            "this worker has left it" if ring.rank else r"worker 1 \(worker-1\) has left the ring"
        )
        with pytest.raises(CollectiveAborted, match=said):
            await ring.all_reduce(array)
        assert (array == 7).all()
        await ring.reform()
        await ring.all_reduce(array)
        assert (array == 14).all()

    await two(member, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_to_form_it_anew_while_a_call_is_on_its_way_is_refused(transport: str) -> None:
    async def member(ring: Ring) -> None:
        array = np.full(200_000, 1, np.float32)
        handle = ring.all_reduce_async(array)
        with pytest.raises(UsageError, match="await the calls"):
            await ring.reform()
        await handle
        assert (array == 2).all()

    await two(member, transport)


async def test_one_who_forms_it_anew_alone_hears_who_is_missing_and_goes_on() -> None:
    async def member(ring: Ring) -> None:
        if ring.rank:
            with pytest.raises(BarrierTimeout, match=r"worker 0 \(worker-0\)"):
                await ring.reform(timeout_s=0.05)
        array = ones()
        await ring.all_reduce(array)
        assert (array == 2).all()

    await two(member)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_handles_may_be_cancelled_in_any_order(transport: str) -> None:
    """The first is given up in its turn, so the later ones have no effect either, on nobody."""

    async def member(ring: Ring) -> None:
        arrays = [np.full(50_000, 7, np.float32) for _ in range(4)]
        handles = [ring.all_reduce_async(array) for array in arrays]
        if ring.rank:
            for handle in reversed(handles):
                handle.cancel()
        ended = await asyncio.gather(*handles, return_exceptions=True)
        expected = asyncio.CancelledError if ring.rank else CollectiveAborted
        assert all(isinstance(error, expected) for error in ended), ended
        assert all((array == 7).all() for array in arrays)
        await ring.reform()
        await ring.barrier()

    await two(member, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_ring_of_one(transport: str) -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        ring = await worker.ring("r", timeout_s=10, transport=transport)
        array = np.array([1.0, np.nan, 3.0], np.float32)
        for op in ("sum", "mean", "max", "min"):
            for order in ("any", "rank"):
                await ring.all_reduce(array, op, order=order)
        assert np.array_equal(array, np.array([1.0, np.nan, 3.0], np.float32), equal_nan=True)
        assert (await ring.all_gather(array)).shape == (1, 3)
        assert (await ring.reduce_scatter(array)).shape == (3,)
        await ring.broadcast(array)
        await ring.barrier()
        await ring.reform()
        assert (ring.generation, ring.world_size) == (2, 1)
        assert dict(ring.traffic) == {"sent": 0, "received": 0}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_leaves_a_ring_of_one_in_the_moment_of_a_call_is_told_so(transport: str) -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        ring = await worker.ring("r", timeout_s=10, transport=transport)
        call = asyncio.ensure_future(ring.all_reduce(ones()))
        await asyncio.sleep(0)  # the call has begun
        await ring.leave()
        with pytest.raises(CollectiveAborted, match="this worker has left it"):
            await call


async def test_rings_may_be_asked_for_at_once_and_in_any_order() -> None:
    """One worker asks for two at once, the other for one after the other, the other way round."""

    async def work(worker: aiops.Worker) -> None:
        if worker.rank:
            second = await worker.ring("b", timeout_s=10)
            first = await worker.ring("a", timeout_s=10)
        else:
            first, second, same = await together(
                worker.ring(name, timeout_s=10) for name in ("a", "b", "a")
            )
            assert same is first
        for ring in (first, second):
            array = ones()
            await ring.all_reduce(array)
            assert (array == 2).all()

    async with local_job(servers=0) as cluster:
        await cluster.run(work, workers=2)


async def test_more_members_than_there_are_workers_are_waited_for_only_so_long() -> None:
    async with local_job(servers=0) as cluster:
        cluster.scheduler.expect_workers(2)
        one, _two = await together([_open(cluster, "one"), _open(cluster, "two")])
        with pytest.raises(BarrierTimeout, match=r"1 missing: worker \d \(two\): alive"):
            await one.ring("r", timeout_s=0.05)
        await together([one.close(), _two.close()])


async def _open(cluster: aiops.LocalCluster, name: str) -> aiops.Worker:
    worker: aiops.Worker = await cluster.connect(name=name)
    return worker


async def test_settings_of_a_ring_that_cannot_be() -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            ({"name": ""}, "the ring's name is ''"),
            ({"name": "a b"}, "the ring's name is 'a b'"),
            ({"name": 3}, "the ring's name is 3"),
            ({"timeout_s": 0}, "timeout"),
            ({"call_timeout_s": -1}, "timeout"),
            ({"transport": "pigeon"}, "transport is 'pigeon'"),
            ({"transport": None}, "transport is None"),
            ({"bind": "nowhere"}, "host:port"),
            ({"bind": "0.0.0.0:0"}, "insecure"),
            ({"bind": 3}, "host:port"),
            ({"advertise": ""}, "host:port"),
            ({"insecure": "no"}, "insecure is 'no'"),
            ({"topology": "star"}, "topology is 'star'"),
            ({"connections": "2"}, "connections is '2'"),
            ({"connections": 1.5}, "connections is 1.5"),
            ({"connections": True}, "connections is True"),
        )
        for wrong, words in cases:
            with pytest.raises((UsageError, ConfigError), match=words):
                await worker.ring(**{"name": "r", **wrong})
        ring = await worker.ring("r", transport="tcp")
        assert await worker.ring("r") is ring
        with pytest.raises(UsageError, match=r'first ring.*"tcp"'):
            await worker.ring("other", transport="shared-memory")
        for shape, dtype in ((-1, np.float32), ((2, -3), np.float32), (3, object), ("3", "f4")):
            with pytest.raises(UsageError, match=r"empty: shape"):
                ring.empty(shape, dtype)  # type: ignore[arg-type]
        assert ring.empty(np.int64(3)).shape == (3,)  # type: ignore[arg-type]
        for kind, count in (("all_scatter", 3), ("all_reduce", -1), ("all_reduce", "many")):
            with pytest.raises(UsageError, match="explain"):
                ring.explain(kind, count)  # type: ignore[arg-type]


ASKED: dict[str, Any] = {
    "timeout_s": 10,
    "call_timeout_s": 20,
    "bind": "localhost:0",
    "advertise": "127.0.0.1:0",
    "insecure": True,
    "transport": "tcp",
    "topology": "measured",
    "connections": 2,
}


async def test_the_same_ring_is_asked_for_in_the_same_words_or_in_none() -> None:
    others: dict[str, tuple[Any, str]] = {
        "timeout_s": (11, "is 11.0, but .* with 10.0"),
        "call_timeout_s": (10, "is 10.0, but .* with 20.0"),
        "bind": ("127.0.0.1:0", 'is "127.0.0.1:0", but .* was "localhost:0"'),
        "advertise": ("localhost:0", 'is "localhost:0", but .* was "127.0.0.1:0"'),
        "transport": ("shared-memory", 'is "shared-memory", but .* was "tcp"'),
        "topology": ("rank", 'is "rank", but .* with "measured"'),
        "connections": (1, "is 1, but .* was 2"),
    }
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        ring = await worker.ring("r", **ASKED)
        for again in (ASKED, {}, *({key: value} for key, value in ASKED.items())):
            assert await worker.ring("r", **again) is ring
        for key, (value, words) in others.items():
            for rest in ({}, ASKED):
                with pytest.raises(UsageError, match=rf"{key} {words}.* give it there"):
                    await worker.ring("r", **{**rest, key: value})
        assert await worker.ring("r") is ring


async def test_a_ring_asked_for_in_no_words_has_what_is_the_usual() -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        ring = await worker.ring("r")
        usual = {"timeout_s": 60, "call_timeout_s": 600, "topology": "rank", "connections": 1}
        assert await worker.ring("r", bind="127.0.0.1:0", **usual) is ring  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"insecure is True, but .* was False"):
            await worker.ring("r", insecure=True)


async def test_where_nothing_can_be_bound_another_address_may_follow() -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        taken = str(cluster.scheduler.address)
        with pytest.raises(AiopsError, match=taken):
            await worker.ring("r", bind=taken)
        ring = await worker.ring("r", bind="127.0.0.1:0", timeout_s=10)
        assert ring.world_size == 1


async def test_after_the_end_every_call_says_so() -> None:
    async with local_job(servers=0) as cluster:
        async with cluster.connect() as worker:
            ring = await worker.ring("r", timeout_s=10)
            await worker.finish()
            with pytest.raises(AiopsError, match=r"has finished|formed anew"):
                await ring.barrier()
            with pytest.raises(AiopsError, match="finished"):
                await ring.reform(timeout_s=10)
            with pytest.raises(AiopsError, match="finished"):
                await worker.ring("other", timeout_s=10)
        with pytest.raises(AiopsError):
            await ring.barrier()
        with pytest.raises(AiopsError):
            await ring.reform(timeout_s=10)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["all_reduce", "barrier"])
async def test_who_calls_too_seldom_is_named(kind: str, transport: str) -> None:
    """Also in a barrier, which this member confirms as soon as it begins it."""

    async def member(ring: Ring) -> None:
        if ring.rank:
            await until(lambda: ring.broken)
        else:
            with pytest.raises(CollectiveTimeout, match=r"worker 1 \(worker-1\) has not begun it"):
                await getattr(ring, kind)(*[ones()][kind == "barrier" :], timeout_s=0.05)
        with pytest.raises(CollectiveAborted, match=r"formed anew.*worker 0 \(worker-0\)"):
            await ring.barrier()

    await two(member, transport)


@pytest.mark.parametrize("timeout_s", [float("inf"), 10**400, 1e300, np.float32(60)])
async def test_any_number_above_0_is_a_time(timeout_s: Any) -> None:
    async def member(ring: Ring) -> None:
        await ring.barrier(timeout_s=timeout_s)

    await two(member)


async def test_the_time_that_is_wrong_is_named() -> None:
    async def work(worker: aiops.Worker) -> None:
        with pytest.raises(UsageError, match="ring r: call_timeout_s is 0; it must"):
            await worker.ring("r", call_timeout_s=0)

    async with local_job(servers=0) as cluster:
        await cluster.run(work, workers=1)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_memory_that_there_is_not_and_a_ring_that_was_left(transport: str) -> None:
    async def member(ring: Ring) -> None:
        with pytest.raises(MemoryError, match=r"4611686018427387904 bytes|allocate"):
            ring.empty(2**60)
        await ring.barrier()
        await ring.leave()
        with pytest.raises(CollectiveAborted, match=r"reform.*this worker has left it"):
            await ring.all_reduce(ones())

    await two(member, transport)


async def test_a_scheduler_on_another_machine_wants_a_door_that_others_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with local_job(servers=0) as cluster, cluster.connect() as worker:
        monkeypatch.setattr(Postoffice, "local_host", "192.0.2.7")  # no machine has this address
        for closed in ({}, {"bind": "127.0.0.1:0"}, {"bind": "localhost:0", "insecure": True}):
            with pytest.raises(ConfigError, match=r"insecure=True \(--insecure\) .* 192\.0\.2\.7"):
                await worker.ring("r", **closed)
        with pytest.raises(AiopsError, match=r"cannot listen on 192\.0\.2\.7:0"):
            await worker.ring("r", insecure=True)
        ring = await worker.ring("r", bind="0.0.0.0:0", insecure=True, timeout_s=10)
        assert ring.world_size == 1
