"""Batches that do not fit are halved until they do, aloud; nothing else is caught."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

from fedsynth.errors import ConfigError
from fedsynth.stages.out_of_memory import is_out_of_memory, with_smaller_batches

MESSAGES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory: you tried to"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"
    ),
    MemoryError(),
]


@pytest.mark.parametrize(
    ("batch_size", "limit"), [(1, 1), (128, 128), (128, 127), (37, 3), (2048, 256), (5, 1)]
)
def test_the_first_half_that_fits_is_taken(batch_size: int, limit: int) -> None:
    tried: list[int] = []

    def work(size: int) -> str:
        tried.append(size)
        if size > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return f"done with {size}"

    result, size = with_smaller_batches(work, batch_size, "stages.diadm.batch_size")
    assert result == f"done with {size}"
    assert size <= limit
    assert all(after == -(-before // 2) for before, after in itertools.pairwise(tried))
    assert tried[-1] == size
    assert all(earlier > limit for earlier in tried[:-1])


@pytest.mark.parametrize("error", MESSAGES, ids=lambda error: type(error).__name__)
def test_every_way_of_saying_it_is_understood(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_the_real_allocator_says_it_so() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), ValueError("out of memory lane"), KeyError("x")]
)
def test_other_errors_pass_through_after_one_try(error: Exception) -> None:
    tries = []

    def work(size: int) -> None:
        tries.append(size)
        raise error

    with pytest.raises(type(error)) as caught:
        with_smaller_batches(work, 8, "batch_size")
    assert caught.value is error
    assert tries == [8]


def test_a_single_record_that_does_not_fit_is_an_error_that_names_the_key() -> None:
    def work(size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

    with pytest.raises(ConfigError, match=r"stages\.diadm\.batch_size=4.*Tried to allocate 9 GiB") as caught:
        with_smaller_batches(work, 4, "stages.diadm.batch_size")
    assert caught.value.key == "stages.diadm.batch_size"
    with pytest.raises(ConfigError, match="≥ 1, got 0"):
        with_smaller_batches(work, 0, "stages.diadm.batch_size")


def test_every_smaller_try_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def work(size: int) -> int:
        if size > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return size

    with caplog.at_level(logging.WARNING):
        with_smaller_batches(work, 10, "stages.x.batch_size")
    assert ["trying 5" in line or "trying 3" in line for line in caplog.messages] == [True, True]
    assert "stages.x.batch_size=10" in caplog.messages[0]
