"""Loops in plain PyTorch over the same module and batches. What a query does once, such as moving weights to
the device, they do before the time is taken."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import torch

KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Seconds for so many passes over the rows.
Passes = Callable[[int], float]


@contextlib.contextmanager
def on_device(module: torch.nn.Module, device: str, precision: str) -> Iterator[torch.nn.Module]:
    """The module there, in that precision; back in fp32 on the CPU afterwards, whatever happens."""
    try:
        yield module.to(device, KINDS[precision])
    finally:
        module.to("cpu", torch.float32)


def pinned(batches: Iterable[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Batches in memory from which copies are asynchronous."""
    return [batch.pin_memory() if device == "cuda" else batch for batch in batches]


def blocking(module: torch.nn.Module, batches: Iterable[torch.Tensor], device: str) -> Passes:
    """Batches one after the other: to the device, through the module, results back."""

    def run(times: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(times):
                for batch in batches:
                    results(module(as_input(batch.to(device, non_blocking=True), module)), device, wait=True)
        return time.perf_counter() - start

    return run


def pipelined(module: torch.nn.Module, batches: list[torch.Tensor], device: str) -> Passes:
    """The same with copies of the next batch beside computing, and without waiting for results of the last."""
    if device != "cuda":
        return blocking(module, batches, device)
    copies = torch.cuda.Stream()

    def copied(batch: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
        with torch.cuda.stream(copies):
            there, done = batch.to(device, non_blocking=True), torch.cuda.Event()
            done.record(copies)
        return there, done

    def run(times: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.inference_mode():
            rows = (batch for _ in range(times) for batch in batches)
            ahead, kept = copied(next(rows)), []
            while ahead is not None:
                there, done = ahead
                following = next(rows, None)
                ahead = None if following is None else copied(following)
                current = torch.cuda.current_stream()
                current.wait_event(done)
                there.record_stream(current)
                found = results(module(as_input(there, module)), device, wait=False)
                event = torch.cuda.Event()
                event.record()
                kept.append((found, event))
                if len(kept) > 2:
                    kept.pop(0)[1].synchronize()
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return run


def ceiling(module: torch.nn.Module, batches: list[torch.Tensor], device: str) -> Passes:
    """What the device takes for computing alone, by its own clock: batches are there, and results stay."""
    there = [as_input(batch.to(device), module) for batch in batches]

    def run(times: int) -> float:
        with torch.inference_mode():
            if device != "cuda":
                start = time.perf_counter()
                for _ in range(times):
                    for batch in there:
                        module(batch)
                return time.perf_counter() - start
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(times):
                for batch in there:
                    module(batch)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1000

    return run


def copying(batches: list[torch.Tensor]) -> Passes:
    """Batches to the device, and nothing else."""

    def run(times: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            for batch in batches:
                batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return run


def as_input(batch: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    """Bytes and floats become what the module's weights are; whole numbers are ids."""
    kind = next(module.parameters()).dtype
    return batch if batch.dtype in (torch.int32, torch.int64) else batch.to(kind)


def results(
    found: torch.Tensor | tuple[torch.Tensor, ...], device: str, *, wait: bool
) -> list[torch.Tensor]:
    """All of them in host memory, as floats; if nobody waits, once the stream gets there."""
    tensors = found if isinstance(found, tuple) else (found,)
    tensors = [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
    if device != "cuda" or wait:
        return [tensor.cpu() for tensor in tensors]
    return [tensor.to("cpu", non_blocking=True) for tensor in tensors]
