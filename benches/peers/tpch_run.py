"""Runs TPC-H's 22 queries on one engine, for `tpch.py`, in whatever environment that engine has.

    python benches/peers/tpch_run.py ENGINE PROGRAM SCALE SOURCE OUTPUT SCRATCH

PROGRAM is Forebay's, or for stock Ballista that of the bench `cluster`.
SOURCE has a folder of Parquet files for each table. Into OUTPUT go the rows of each query, as `1.csv` to `22.csv`, and
`seconds.json`: what each took, or why it failed. SCRATCH is for what the engine has no memory for.
"""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from engines import settings

# Of each core.
MEMORY = 2_000_000_000
TEXTS = settings.ROOT / "tests/cluster/tpch"
QUERIES = range(1, 23)
TABLES = ("nation", "region", "part", "supplier", "partsupp", "customer", "orders", "lineitem")
LIMIT_S = 1200

Rows = list[list[str]]


@dataclass(frozen=True)
class Task:
    """What is asked for."""

    program: Path
    scale: float
    source: Path
    output: Path
    scratch: Path


def text(number: int, scale: float) -> str:
    """A query for data of this scale, as `tests/support/src/tpch.rs` has it."""
    query = (TEXTS / f"q{number:02}.sql").read_text()
    if number == 11:
        return query.replace("0.01", f"{0.0001 / scale:.10f}")
    return query.replace("250", "300") if number == 18 and scale >= 1 else query


def on_forebay(task: Task) -> None:
    """A shell for each query."""
    import limited

    tables = "".join(
        f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{task.source / table}/';"
        for table in TABLES
    )
    own = limited.forebay_environment(task.scratch)
    with limited.cluster(task.program, task.scratch, MEMORY) as cluster:

        def rows(query: str) -> Rows:
            command = [*cluster.shell, "--format", "csv", "-c", tables + query]
            limit = {"env": own, "timeout": LIMIT_S, "capture_output": True, "text": True}
            done = subprocess.run(command, **limit)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip()[-300:])
            return list(csv.reader(done.stdout.splitlines()))[1:]

        each(task, rows)


def on_duckdb(task: Task) -> None:
    """In its process."""
    import duckdb

    db = duckdb.connect()
    db.execute(f"SET temp_directory='{task.scratch}'; SET threads={settings.CORES}")
    db.execute(f"SET memory_limit='{settings.CORES * MEMORY}B'; SET enable_progress_bar=false")
    for table in TABLES:
        db.execute(f"CREATE VIEW {table} AS SELECT * FROM '{task.source / table}/*.parquet'")
    each(task, lambda query: plain(db.execute(query).fetchall()))


def on_spark(task: Task) -> None:
    """One process."""
    import limited

    partitions = {"spark.sql.shuffle.partitions": str(8 * settings.CORES)}
    session = limited.spark(task.scratch, settings.CORES * MEMORY, partitions)
    for table in TABLES:
        session.read.parquet(str(task.source / table)).createOrReplaceTempView(table)
    each(task, lambda query: plain(session.sql(query).collect()))


def on_ballista(task: Task) -> None:
    """A process with a scheduler and executors."""
    import limited

    with limited.stock_ballista(task.program, task.scratch, MEMORY) as run:
        for table in TABLES:
            run(f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{task.source / table}/'")
        each(task, lambda query: list(csv.reader(run(query)))[1:])


def plain(rows: Iterable[Iterable[object]]) -> Rows:
    """As texts."""
    return [["" if value is None else str(value) for value in row] for row in rows]


def each(task: Task, rows: Callable[[str], Rows]) -> None:
    """Runs all queries, and writes their rows and times to the output folder."""
    seconds: dict[int, float | str] = {}
    for number in QUERIES:
        start = time.perf_counter()
        try:
            found = rows(text(number, task.scale))
            seconds[number] = round(time.perf_counter() - start, 3)
            with open(task.output / f"{number}.csv", "w", newline="") as file:
                csv.writer(file).writerows(found)
        except Exception as error:
            # Of whatever kind: each engine has its own.
            seconds[number] = f"{type(error).__name__}: {error}"[:300]
        say(f"  query {number}: {seconds[number]}")
    (task.output / "seconds.json").write_text(json.dumps(seconds))


ENGINES = {"duckdb": on_duckdb, "forebay": on_forebay, "spark": on_spark, "ballista": on_ballista}


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    engine, program, scale, *folders = sys.argv[1:]
    ENGINES[engine](Task(Path(program), float(scale), *map(Path, folders)))
    # Without the engine's own way out.
    os._exit(0)
