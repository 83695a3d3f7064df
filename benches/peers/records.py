"""Records as those of the sort benchmark (sortbenchmark.org): 10 bytes of key and 90 beside it.

The rest of a record is laid out as gensort's text-free form has it: two bytes, the record's number in 32
digits, and bytes between marks. They lie in Parquet files, uncompressed, as no engine here reads gensort's
files; the columns are `key` and `rest`. `summary` is what valsort says of a file: whether it is in order, how
many records it has, and a sum over them that does not depend on their order.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEY, REST = 10, 90
RECORD = KEY + REST
FILES = 16
ROW_GROUP = 1 << 17
SEED = 7

# Of the skewed records half have one of so many keys.
HEAVY_KEYS = 16

SCHEMA = pa.schema([("key", pa.binary()), ("rest", pa.binary())])


@dataclass
class Summary:
    """What a sorted output is compared by."""

    records: int
    total: int
    in_order: bool


def make(records: int, is_skewed: bool, folder: Path) -> Path:
    """The folder with files of so many records; made only if it is not there."""
    home = folder / f"records-{records}{'-skewed' if is_skewed else ''}"
    if home.exists():
        return home
    partial = home.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(write, range(FILES), repeat(records), repeat(is_skewed), repeat(partial)))
    partial.rename(home)
    return home


def write(file: int, records: int, is_skewed: bool, folder: Path) -> None:
    """One of the files."""
    first, end = file * records // FILES, (file + 1) * records // FILES
    random = np.random.default_rng([SEED, file])
    with writer(folder / f"{file:02}.parquet") as out:
        for start in range(first, end, ROW_GROUP):
            count = min(ROW_GROUP, end - start)
            out.write_table(table(random, start, count, is_skewed), ROW_GROUP)


def writer(path: Path) -> pq.ParquetWriter:
    """Random bytes are neither compressed nor put into dictionaries."""
    return pq.ParquetWriter(path, SCHEMA, compression="none", use_dictionary=False)


def table(random: np.random.Generator, first: int, count: int, is_skewed: bool) -> pa.Table:
    """Records with the numbers from `first` on."""
    keys = random.integers(0, 256, (count, KEY), dtype=np.uint8)
    if is_skewed:
        heavy = np.random.default_rng(SEED).integers(0, 256, (HEAVY_KEYS, KEY), dtype=np.uint8)
        is_heavy = random.random(count) < 0.5
        keys[is_heavy] = heavy[random.integers(0, HEAVY_KEYS, is_heavy.sum())]
    rest = np.empty((count, REST), dtype=np.uint8)
    rest[:, :2] = (0x00, 0x11)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    for digit in range(32):
        nibble = (numbers >> np.uint64(4 * digit)) & np.uint64(15) if digit < 16 else 0 * numbers
        rest[:, 33 - digit] = np.frombuffer(b"0123456789ABCDEF", np.uint8)[nibble]
    rest[:, 34:38] = (0x88, 0x99, 0xAA, 0xBB)
    # Twelve letters of four equal bytes each.
    rest[:, 38:86] = np.repeat(random.integers(65, 91, (count, 12), dtype=np.uint8), 4, axis=1)
    rest[:, 86:] = (0xCC, 0xDD, 0xEE, 0xFF)
    return pa.table([values(keys), values(rest)], schema=SCHEMA)


def values(rows: np.ndarray) -> pa.Array:
    """Binary values of one length."""
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def summary(folder: Path) -> Summary:
    """Reads all files, which are in the order of their names."""
    whole = Summary(0, 0, True)
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.parquet")) + sorted(folder.glob("*.records"))
    pieces = [(path, group) for path in paths for group in range(row_groups(path))]
    before = b""
    with ProcessPoolExecutor() as pool:
        for found, first, last in pool.map(of_row_group, pieces, chunksize=8):
            whole.records += found.records
            whole.total = (whole.total + found.total) % 2**64
            whole.in_order &= found.in_order and (not found.records or before <= first)
            before = last if found.records else before
    return whole


def row_groups(path: Path) -> int:
    """How many there are; a file of nothing but records is one."""
    return 1 if path.suffix == ".records" else pq.ParquetFile(path).num_row_groups


def read(path: Path, group: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys of a row group, and what is beside them."""
    if path.suffix == ".records":
        rows = np.fromfile(path, dtype=np.uint8).reshape(-1, RECORD)
        yield rows[:, :KEY], rows[:, KEY:]
        return
    for batch in pq.ParquetFile(path).iter_batches(ROW_GROUP, row_groups=[group], columns=["key", "rest"]):
        yield fixed(batch["key"], KEY), fixed(batch["rest"], REST)


def of_row_group(piece: tuple[Path, int]) -> tuple[Summary, bytes, bytes]:
    """Of a part of a file, and its first and last key."""
    path, group = piece
    found, first, last = Summary(0, 0, True), b"", b""
    for keys, rest in read(path, group):
        if not len(keys):
            continue
        first = first if found.records else keys[0].tobytes()
        found.records += len(keys)
        found.total = (found.total + hashes(keys, rest)) % 2**64
        found.in_order &= last <= keys[0].tobytes() and is_sorted(keys)
        last = keys[-1].tobytes()
    return found, first, last


def fixed(column: pa.Array, width: int) -> np.ndarray:
    """Bytes of values that are all of one length."""
    column = column.cast(pa.binary(width))
    flat = np.frombuffer(column.buffers()[1], np.uint8)
    return flat.reshape(-1, width)[column.offset : column.offset + len(column)]


def is_sorted(keys: np.ndarray) -> bool:
    """Whether no key is less than the one before it."""
    high = keys[:, :8].copy().view(">u8")[:, 0]
    low = keys[:, 8:].copy().view(">u2")[:, 0]
    before, after = high[:-1], high[1:]
    return bool(np.all((before < after) | ((before == after) & (low[:-1] <= low[1:]))))


def hashes(keys: np.ndarray, rest: np.ndarray) -> int:
    """The sum of a hash of each record: a product with odd numbers, and the finish of SplitMix64."""
    words = np.concatenate([keys, rest], axis=1).view("<u4").astype(np.uint64)
    factors = np.random.default_rng(SEED).integers(0, 2**63, words.shape[1], dtype=np.uint64)
    mixed = (words * (2 * factors + 1)).sum(axis=1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
