"""Tables of Delta Lake that Forebay has written, read by `deltalake`, and the other way round."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import threading
from pathlib import Path

import pytest
from conftest import MODES, Server, shell

deltalake = pytest.importorskip(
    "deltalake", reason="there is no other implementation here: run tools/setup clients"
)
import pyarrow as pa  # noqa: E402
from deltalake import DeltaTable, write_deltalake  # noqa: E402

UTC = dt.timezone.utc
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("n", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
# Without it, TIMESTAMP WITH TIME ZONE has none.
ZONE = "SET datafusion.execution.time_zone = 'UTC'"
COLUMNS = """name VARCHAR, n BIGINT, price DECIMAL(10, 2), day DATE, at TIMESTAMP WITH TIME ZONE,
    tags VARCHAR[]"""


def rows(numbers) -> list[dict]:
    names = ["a", "b/c", "50% ä", None]
    return [
        {
            "name": names[n % 4],
            "n": n,
            "price": decimal.Decimal(n) / 4,
            "day": dt.date(2026, 1, 1 + n % 3),
            "at": dt.datetime(2026, 1, 1, 0, 0, 0, n, tzinfo=UTC),
            "tags": None if n % 5 == 0 else [str(n), None],
        }
        for n in numbers
    ]


def in_order(table: pa.Table) -> list[dict]:
    return sorted(table.cast(SCHEMA).to_pylist(), key=lambda row: row["n"])


def values(numbers) -> str:
    """The same rows in SQL."""

    def text(row: dict) -> str:
        name = "NULL" if row["name"] is None else f"'{row['name']}'"
        tags = "NULL" if row["tags"] is None else f"['{row['tags'][0]}', NULL]"
        at = row["at"].isoformat().replace("+00:00", "Z")
        return f"({name}, {row['n']}, {row['price']}, '{row['day']}', '{at}', {tags})"

    return "VALUES " + ", ".join(text(row) for row in rows(numbers))


def run(home: Path, *statements: str) -> str:
    done = shell(home, ZONE, *statements)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(home: Path, *statements: str) -> str:
    done = shell(home, *statements)
    assert done.returncode != 0, done.stdout
    return done.stderr


def table(folder: Path, columns: str = "", partitioned: str = "") -> str:
    columns = f"({columns})" if columns else ""
    by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
    return f"CREATE EXTERNAL TABLE t {columns} STORED AS DELTATABLE {by} LOCATION '{folder}'"


def transaction(folder: Path, version: int) -> str:
    """The id of the only one of a commit."""
    lines = (folder / f"_delta_log/{version:020}.json").read_text().splitlines()
    (found,) = [action["txn"] for action in map(json.loads, lines) if "txn" in action]
    return found["appId"]


@pytest.mark.parametrize("partitioned", ["", "name", "name, day", "at"])
def test_others_read_what_is_written(tmp_path, partitioned):
    folder = tmp_path / "t"
    run(tmp_path, table(folder, COLUMNS, partitioned), f"INSERT INTO t {values(range(20))}")
    run(tmp_path, table(folder), f"INSERT INTO t {values(range(20, 30))}")
    found = DeltaTable(folder)
    assert in_order(pa.table(found.to_pyarrow_table())) == rows(range(30))
    # What it leaves out by partitions and statistics, it leaves out rightly.
    some = found.to_pyarrow_table(filters=[("n", ">=", 25)])
    assert in_order(some) == rows(range(25, 30))
    # One commit each, with an id, which is in the names of its files.
    history = found.history()
    assert [entry["operation"] for entry in history] == ["WRITE", "WRITE", "CREATE TABLE"]
    first, second = (transaction(folder, version) for version in (1, 2))
    # And so does this one.
    plan = run(tmp_path, table(folder), "EXPLAIN SELECT * FROM t WHERE n >= 25")
    assert first not in plan and second in plan
    assert first in run(tmp_path, table(folder), "EXPLAIN SELECT * FROM t")
    # Nothing lies there that is not the table's.
    assert found.vacuum(retention_hours=0, enforce_retention_duration=False) == []
    assert not list(folder.glob("_forebay-*"))
    run(tmp_path, table(folder), f"INSERT OVERWRITE t {values(range(3))}")
    assert in_order(pa.table(DeltaTable(folder).to_pyarrow_table())) == rows(range(3))
    # The version before is there as it was.
    before = DeltaTable(folder, version=2).to_pyarrow_table()
    assert in_order(pa.table(before)) == rows(range(30))


@pytest.mark.parametrize("partitioned", [None, ["name"], ["name", "day"], ["at"]])
def test_what_others_have_written_is_read(tmp_path, partitioned):
    folder = tmp_path / "t"
    for numbers in (range(0, 20), range(20, 40)):
        data = pa.Table.from_pylist(rows(numbers), SCHEMA)
        write_deltalake(folder, data, mode="append", partition_by=partitioned)
    DeltaTable(folder).create_checkpoint()
    data = pa.Table.from_pylist(rows(range(40, 50)), SCHEMA)
    write_deltalake(folder, data, mode="append", partition_by=partitioned)
    query = "SELECT count(*), sum(n), sum(price), max(at), count(name), count(tags[1]) FROM t"
    every = rows(range(50))
    expected = [
        str(len(every)),
        str(sum(row["n"] for row in every)),
        str(sum(row["price"] for row in every)),
        "2026-01-01T00:00:00.000049Z",
        str(sum(row["name"] is not None for row in every)),
        str(sum(row["tags"] is not None for row in every)),
    ]
    assert run(tmp_path, table(folder), query).split()[-1].split(",") == expected
    for condition, holds in [
        ("n >= 45", lambda row: row["n"] >= 45),
        ("name = '50% ä'", lambda row: row["name"] == "50% ä"),
        ("name IS NULL", lambda row: row["name"] is None),
        ("day = '2026-01-02' AND n < 10", lambda row: row["day"].day == 2 and row["n"] < 10),
        ("at >= '2026-01-01T00:00:00.000048Z'", lambda row: row["n"] >= 48),
        ("price > 12", lambda row: row["price"] > 12),
    ]:
        query = f"SELECT count(*) FROM t WHERE {condition}"
        found = run(tmp_path, table(folder), query).split()[-1]
        assert int(found) == sum(map(holds, every)), condition


def test_rows_that_others_have_removed_or_compacted(tmp_path):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.Table.from_pylist(rows(range(20)), SCHEMA))
    others = DeltaTable(folder)
    others.delete("n < 5")
    others.update({"n": "n + 100"}, predicate="n >= 15")
    others.optimize.compact()
    query = "SELECT count(*), min(n), max(n) FROM t"
    assert run(tmp_path, table(folder), query).split()[-1] == "15,5,119"


def test_a_column_that_was_added_later_is_null_before(tmp_path):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1]}))
    more = pa.table({"n": [2], "more": ["x"]})
    write_deltalake(folder, more, mode="append", schema_mode="merge")
    found = run(tmp_path, table(folder), "SELECT n, more FROM t ORDER BY n")
    assert found.split() == ["n,more", "1,", "2,x"]


def edit_log(folder: Path, version: int, edit) -> None:
    path = folder / f"_delta_log/{version:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        edit(action)
    path.write_text("\n".join(json.dumps(action) for action in actions))


def test_files_that_their_writer_has_not_encoded_are_removed(tmp_path):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1, 2]}))
    (file,) = DeltaTable(folder).file_uris()
    file = Path(file.removeprefix("file://"))
    file.rename(file.with_name("ä b.parquet"))

    def unencoded(action: dict) -> None:
        if "add" in action:
            action["add"]["path"] = "ä b.parquet"

    edit_log(folder, 0, unencoded)
    assert run(tmp_path, table(folder), "SELECT sum(n) FROM t").split()[-1] == "3"
    run(tmp_path, table(folder), "INSERT OVERWRITE t SELECT 7")
    for _ in range(2):
        found = DeltaTable(folder)
        assert found.to_pyarrow_table().to_pylist() == [{"n": 7}]
        assert run(tmp_path, table(folder), "SELECT sum(n) FROM t").split()[-1] == "7"
        found.create_checkpoint()
    assert DeltaTable(folder, version=0).to_pyarrow_table().num_rows == 2


def with_protocol(reader: int, writer: int, readers=(), writers=(), **properties):
    def edit(action: dict) -> None:
        if "protocol" in action:
            protocol = {"minReaderVersion": reader, "minWriterVersion": writer}
            if reader == 3:
                protocol["readerFeatures"] = list(readers)
            if writer == 7:
                protocol["writerFeatures"] = list(writers)
            action["protocol"] = protocol
        if "metaData" in action:
            action["metaData"]["configuration"].update(properties)

    return edit


@pytest.mark.parametrize(
    "edit, reads, says",
    [
        (with_protocol(9, 9), False, ["cannot be read"]),
        (with_protocol(3, 7, ["rowsOfTomorrow"], ["rowsOfTomorrow"]), False, ["rowsOfTomorrow"]),
        (with_protocol(1, 7, [], ["rowTracking"]), True, ["cannot be written", "rowTracking"]),
        (with_protocol(1, 3), True, ["cannot be written"]),
        (
            with_protocol(1, 2, **{"delta.appendOnly": "true"}),
            True,
            ["append-only", "use INSERT INTO"],
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, edit, reads, says):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1]}))
    edit_log(folder, 0, edit)
    if reads:
        assert run(tmp_path, table(folder), "SELECT n FROM t").split() == ["n", "1"]
        error = refused(tmp_path, table(folder), "INSERT OVERWRITE t SELECT 2")
    else:
        error = refused(tmp_path, table(folder))
    assert all(word in error for word in says), error
    assert str(folder) in error and "Traceback" not in error and "panic" not in error


def test_mapped_columns_are_refused(tmp_path):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1]}))
    mapped = with_protocol(2, 5, **{"delta.columnMapping.mode": "name"})

    def edit(action: dict) -> None:
        mapped(action)
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            physical = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
            schema["fields"][0]["metadata"] = physical
            action["metaData"]["schemaString"] = json.dumps(schema)

    edit_log(folder, 0, edit)
    error = refused(tmp_path, table(folder))
    assert "delta.columnMapping.mode = name" in error, error


def test_deletion_vectors_are_refused(tmp_path):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1, 2]}))
    features = ["deletionVectors"]
    protocol = with_protocol(3, 7, features, features)

    def edit(action: dict) -> None:
        protocol(action)
        if "add" in action:
            action["add"]["deletionVector"] = {
                "storageType": "i",
                "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
                "sizeInBytes": 44,
                "cardinality": 1,
            }

    edit_log(folder, 0, protocol)
    assert run(tmp_path, table(folder), "SELECT count(*) FROM t").split()[-1] == "2"
    edit_log(folder, 0, edit)
    error = refused(tmp_path, table(folder), "SELECT count(*) FROM t")
    assert "1 of its files are deleted by deletion vectors" in error, error


def test_constraints_are_not_passed_by(tmp_path):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1]}))
    DeltaTable(folder).alter.add_constraint({"positive": "n > 0"})
    error = refused(tmp_path, table(folder), "INSERT INTO t SELECT -1")
    assert "cannot be written" in error, error


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_log_that_is_cut_short_is_an_error(tmp_path, cut):
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"n": [1]}))
    write_deltalake(folder, pa.table({"n": [2]}), mode="append")
    path = folder / "_delta_log/00000000000000000001.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: cut if cut >= 0 else len(whole) - 20])
    done = shell(tmp_path, table(folder), "SELECT count(*) FROM t")
    if done.returncode == 0:
        # An empty commit says nothing; half a one must not be taken for a whole.
        assert cut == 0 and done.stdout.split()[-1] == "1", done.stdout
    else:
        assert "is broken" in done.stderr, done.stderr
    # A version that is missing.
    path.rename(path.with_name("00000000000000000002.json"))
    assert "is broken" in refused(tmp_path, table(folder))


@pytest.mark.parametrize("mode", MODES)
def test_what_a_detached_job_writes_has_its_id(tmp_path, mode):
    folder = tmp_path / "t"
    server = Server(tmp_path, *MODES[mode], first=table(folder, "n BIGINT") + ";")
    connected = ("--connect", server.uri)
    insert = "INSERT INTO t SELECT value FROM range(0, 10)"
    done = shell(tmp_path, insert, arguments=(*connected, "--detach"))
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    waited = shell(tmp_path, f"WAIT FOR JOB '{job}'", arguments=connected)
    assert waited.returncode == 0, waited.stderr
    assert transaction(folder, 1).startswith(f"{job}-")
    assert DeltaTable(folder).to_pyarrow_table().num_rows == 10
    server.stop()


@pytest.mark.parametrize("mode", MODES)
def test_writers_at_the_same_time(tmp_path, mode):
    """Rows that are added are all there; of two that overwrite, one is told to run again."""
    adbc = pytest.importorskip("adbc_driver_flightsql.dbapi")
    folder = tmp_path / "t"
    server = Server(tmp_path, *MODES[mode], first=table(folder, "n BIGINT, who VARCHAR") + ";")
    errors: list[str] = []

    def insert(statement: str, times: int) -> None:
        with adbc.connect(server.uri) as connection, connection.cursor() as cursor:
            for _ in range(times):
                try:
                    cursor.execute(statement)
                except Exception as error:  # noqa: BLE001
                    errors.append(str(error))

    def at_once(statement: str, times: int) -> None:
        threads = [
            threading.Thread(target=insert, args=(statement.format(who=who), times))
            for who in range(3)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

    at_once("INSERT INTO t SELECT value, 'writer {who}' FROM range(0, 100)", 4)
    assert errors == []
    found = DeltaTable(folder).to_pyarrow_table()
    assert found.num_rows == 3 * 4 * 100
    at_once("INSERT OVERWRITE t SELECT n, who FROM t WHERE n < 50", 2)
    assert all("another writer has changed" in error and "run it again" in error for error in errors)
    found = DeltaTable(folder).to_pyarrow_table()
    # Whoever came first: no row is lost, and none is there twice.
    assert found.num_rows == 3 * 4 * 50
    server.stop()
    assert not list(folder.glob("_forebay-*"))
