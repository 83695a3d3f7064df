"""Sorting records with nothing around it: a process per core that reads, orders and writes fixed rows of bytes.

What any program would have to do that sorts more than it holds, once to make sorted runs and once to merge them by
ranges, as fast as numpy does it: no format, no network, no plan, nobody who may fail. Files go by way of the page cache.
It is the limit that a sort is compared with where the disk is faster than the cores.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import records

RUN = 1_280_000
SAMPLE = 1 << 16


def prepare(source: Path, folder: Path) -> Path:
    """One file of all records of a folder of Parquet files."""
    path = folder / "input"
    with open(path, "wb") as out:
        for file in sorted(source.glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(records.ROW_GROUP):
                columns = [records.fixed(batch["key"], records.KEY), records.fixed(batch["rest"], records.REST)]
                out.write(np.concatenate(columns, axis=1))
    return path


def sort(path: Path, scratch: Path, output: Path, cores: int) -> float:
    """Sorts a file into files in the order of their names. Seconds, without those in which the file is removed, once it has
    been read, and its runs: a disk may not have room for its records four times.
    """
    start = time.perf_counter()
    count = path.stat().st_size // records.RECORD
    runs = -(-count // RUN)
    sample = np.fromfile(path, dtype=np.uint8, count=SAMPLE * records.RECORD).reshape(-1, records.RECORD)
    sample = np.sort(keys_of(sample))
    borders = sample[np.arange(1, runs) * len(sample) // runs]
    with ProcessPoolExecutor(cores) as pool:
        cuts = np.stack(list(pool.map(make_run, range(runs), repeat(path), repeat(scratch), repeat(borders))))
        read = time.perf_counter()
        path.unlink()
        removed = time.perf_counter()
        list(pool.map(merge, range(runs), repeat(cuts), repeat(scratch), repeat(output)))
    seconds = time.perf_counter() - removed + read - start
    for run in range(runs):
        (scratch / f"{run}").unlink()
    return seconds


def make_run(run: int, path: Path, scratch: Path, borders: np.ndarray) -> np.ndarray:
    """Sorts a part of the file; gives where ranges begin and end in it."""
    rows = room(0, RUN)
    with open(path, "rb", buffering=0) as file:
        file.seek(run * RUN * records.RECORD)
        rows = rows[: file.readinto(rows.reshape(-1)) // records.RECORD]
    keys = write_in_order(rows, scratch / f"{run}")
    return np.concatenate([[0], np.searchsorted(keys, borders), [len(keys)]])


def merge(at: int, cuts: np.ndarray, scratch: Path, output: Path) -> None:
    """Writes a range of all runs."""
    rows = room(0, int((cuts[:, at + 1] - cuts[:, at]).sum()))
    end = 0
    for run, cut in enumerate(cuts):
        begin, end = end, end + int(cut[at + 1] - cut[at])
        with open(scratch / f"{run}", "rb", buffering=0) as file:
            file.seek(int(cut[at]) * records.RECORD)
            file.readinto(rows[begin:end].reshape(-1))
    write_in_order(rows, output / f"{at:05}.records")


# Used again and again: memory that is new must be found and cleared first.
rooms: dict[int, np.ndarray] = {}


def room(number: int, rows: int) -> np.ndarray:
    """Memory for so many records."""
    if number not in rooms or len(rooms[number]) < rows:
        rooms[number] = np.empty((rows + rows // 4, records.RECORD), np.uint8)
    return rooms[number][:rows]


def keys_of(rows: np.ndarray) -> np.ndarray:
    """The first eight bytes of each, as numbers of the same order."""
    return rows[:, :8].copy().view(">u8").ravel().astype(np.uint64)


def write_in_order(rows: np.ndarray, path: Path) -> np.ndarray:
    """The keys in their order. What differs in the last two bytes of ten alone is not looked at: random keys do not."""
    keys = keys_of(rows)
    order = np.argsort(keys)
    ordered = room(1, len(rows))
    whole = np.dtype((np.void, records.RECORD))
    np.take(rows.view(whole).ravel(), order, out=ordered.view(whole).ravel(), mode="clip")
    with open(path, "wb", buffering=0) as file:
        left = memoryview(ordered.reshape(-1))
        while left:
            left = left[file.write(left) :]
    return keys[order]
