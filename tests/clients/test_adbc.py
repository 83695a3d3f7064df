"""ADBC's driver for Flight SQL, which is written in Go."""

from __future__ import annotations

import threading
import time

import adbc_driver_flightsql.dbapi as flightsql
import adbc_driver_manager
import pandas
import pyarrow
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")


@pytest.fixture
def cursor(server):
    with flightsql.connect(server.uri) as connection, connection.cursor() as cursor:
        yield cursor


def rows(cursor, statement, parameters=None):
    cursor.execute(statement, parameters)
    return cursor.fetchall()


def test_queries_give_their_rows(cursor):
    found = rows(cursor, "SELECT id, word FROM words ORDER BY id")
    assert found == [(1, "red"), (2, "green"), (3, None)]
    cursor.execute("SELECT id, word FROM words ORDER BY id")
    table = cursor.fetch_arrow_table()
    assert table.schema.types == [pyarrow.int64(), pyarrow.string()]
    cursor.execute("SELECT id * 2 AS n FROM words ORDER BY id")
    assert cursor.fetch_df()["n"].tolist() == [2, 4, 6]
    cursor.execute("SELECT id * 2 AS n FROM words ORDER BY id")
    assert cursor.fetch_polars()["n"].to_list() == [2, 4, 6]
    assert rows(cursor, "SELECT * FROM words WHERE id > 100") == []


def test_predictions_are_rows(cursor):
    found = rows(cursor, "SELECT id, digest IS NOT NULL FROM ml_predict(TABLE words, MODEL echo, "
                         "DESCRIPTOR(id)) ORDER BY id")
    assert found == [(1, True), (2, True), (3, True)]


def test_values_are_bound_wherever_an_expression_can_be(cursor):
    assert rows(cursor, "SELECT word FROM words WHERE id = ?", (2,)) == [("green",)]
    assert rows(cursor, "SELECT word FROM words WHERE id = $1 OR word = $2 ORDER BY id",
                (2, "red")) == [("red",), ("green",)]
    assert rows(cursor, "SELECT word FROM words WHERE id = $1", (None,)) == []
    text = "it's'; DROP TABLE words; --"
    assert rows(cursor, "SELECT ? AS text", (text,)) == [(text,)]
    assert rows(cursor, "SELECT count(*) FROM words WHERE word = ?", (text,)) == [(0,)]
    predict = ("SELECT text, label IS NOT NULL FROM ml_predict((SELECT ? AS text), "
               "MODEL sentiment, DESCRIPTOR(text))")
    assert rows(cursor, predict, ("a good day",)) == [("a good day", True)]
    assert rows(cursor, "SELECT id FROM ml_predict((SELECT CAST(? AS BIGINT) AS id), MODEL echo, "
                        "DESCRIPTOR(id))", (-7,)) == [(-7,)]
    found = rows(cursor, "SELECT array_length(?) AS n", (pyarrow.scalar([1.0, 2.0]).as_py(),))
    assert found == [(2,)]


def test_a_batch_of_values_runs_a_query_for_each(cursor):
    values = pyarrow.record_batch({"1": ["one", "two", "three"]})
    cursor.adbc_prepare("SELECT text FROM ml_predict((SELECT $1 AS text), MODEL sentiment, "
                        "DESCRIPTOR(text))")
    cursor.execute("SELECT text FROM ml_predict((SELECT $1 AS text), MODEL sentiment, "
                   "DESCRIPTOR(text))", values)
    assert cursor.fetchall() == [("one",), ("two",), ("three",)]


def test_values_that_are_missing_or_too_many_are_named(cursor):
    with pytest.raises(adbc_driver_manager.Error, match="has 1 parameters, and no values are bound"):
        rows(cursor, "SELECT ?")
    with pytest.raises(adbc_driver_manager.Error, match="has 1 parameters, and 2 values are bound"):
        rows(cursor, "SELECT ?", (1, 2))


def test_definitions_and_changes(cursor, tmp_path):
    name = f"t{time.time_ns()}"
    cursor.execute(f"CREATE TABLE {name} AS SELECT id AS a FROM words")
    cursor.execute(f"INSERT INTO {name} VALUES (10)")
    assert cursor.fetchall() == [(1,)]
    cursor.executemany(f"INSERT INTO {name} VALUES (?)", [(20,), (30,)])
    assert cursor.rowcount == 2
    assert rows(cursor, f"SELECT sum(a), count(*) FROM {name}") == [(66, 6)]
    # They take no bytes on their way.
    nulls = pyarrow.table({"a": pyarrow.nulls(1_000_001, pyarrow.int64())})
    with pytest.raises(adbc_driver_manager.Error, match="1000001 values are bound, and this server takes"):
        cursor.executemany(f"INSERT INTO {name} VALUES (?)", nulls)
    cursor.execute(f"COPY {name} TO '{tmp_path}/out.parquet'")
    assert len(pandas.read_parquet(tmp_path / "out.parquet")) == 6
    cursor.execute(f"CREATE EXTERNAL TABLE {name}_file STORED AS PARQUET "
                   f"LOCATION '{tmp_path}/out.parquet'")
    assert rows(cursor, f"SELECT max(a) FROM {name}_file") == [(30,)]
    cursor.execute(f"DROP TABLE {name}_file")
    cursor.execute(f"DROP TABLE {name}")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="not found"):
        rows(cursor, f"SELECT * FROM {name}")


def test_a_write_that_fails_leaves_nothing_that_looks_whole(cursor, tmp_path):
    copy = (f"COPY (SELECT CAST(CASE WHEN value = 90000 THEN 'x' ELSE '1' END AS INT) AS n "
            f"FROM range(0, 100000)) TO '{tmp_path}/half.parquet'")
    with pytest.raises(adbc_driver_manager.Error, match="Cannot cast string 'x'"):
        rows(cursor, copy)
    assert list(tmp_path.glob("*.parquet")) == []


def test_jobs_outlive_the_connection_that_submits_them(server):
    with flightsql.connect(server.uri) as connection, connection.cursor() as cursor:
        submit = "SUBMIT SELECT id, word FROM words WHERE id = ?"
        [(job,)] = rows(cursor, submit, (2,))
    with flightsql.connect(server.uri) as connection, connection.cursor() as cursor:
        [(waited, state, count, seconds)] = rows(cursor, f"WAIT FOR JOB '{job}'")
        assert (waited, state, count) == (job, "finished", 1) and seconds >= 0
        assert rows(cursor, f"SELECT * FROM job_result('{job}')") == [(2, "green")]
        assert rows(cursor, f"SELECT state, detached FROM forebay.jobs WHERE job_id = '{job}'") == [
            ("finished", True)
        ]
        with pytest.raises(adbc_driver_manager.Error, match="no detached job 'none'"):
            rows(cursor, "WAIT FOR JOB 'none'")


def test_models_are_made_listed_and_dropped(cursor):
    from conftest import ECHO

    cursor.execute(f"CREATE MODEL other LOCATION '{ECHO}'")
    names = [row[0] for row in rows(cursor, "SHOW MODELS")]
    assert names == ["echo", "other", "sentiment"]
    listed = rows(cursor, "SELECT name FROM information_schema.models ORDER BY 1")
    assert ("other",) in listed
    cursor.execute("DROP MODEL other")
    assert "other" not in [row[0] for row in rows(cursor, "SHOW MODELS")]


def test_options_last_for_the_session_and_no_longer(server):
    with flightsql.connect(server.uri) as one, flightsql.connect(server.uri) as two:
        with one.cursor() as cursor, two.cursor() as other:
            cursor.execute("SET datafusion.execution.batch_size = 123")
            show = "SHOW datafusion.execution.batch_size"
            assert rows(cursor, show)[0][1] == "123"
            assert rows(other, show)[0][1] == "8192"


def test_metadata(server):
    with flightsql.connect(server.uri) as connection:
        assert connection.adbc_get_info()["vendor_name"] == "Forebay"
        assert set(connection.adbc_get_table_types()) >= {"TABLE", "VIEW"}
        schema = connection.adbc_get_table_schema("words")
        assert schema.names == ["id", "word"]
        found = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        schemas = {s["db_schema_name"]: s for c in found for s in c["catalog_db_schemas"]}
        assert {"public", "information_schema", "forebay"} <= schemas.keys()
        words = next(t for t in schemas["public"]["db_schema_tables"] if t["table_name"] == "words")
        assert [c["column_name"] for c in words["table_columns"]] == ["id", "word"]


def test_rows_of_a_client_become_a_table(cursor):
    name = f"ingested{time.time_ns()}"
    table = pyarrow.table({"a": [1, 2, None], "b": ["x", None, "z"]})
    assert cursor.adbc_ingest(name, table, mode="create") == 3
    assert cursor.adbc_ingest(name, table, mode="append") == 3
    assert rows(cursor, f"SELECT count(*), sum(a) FROM {name}") == [(6, 6)]
    with pytest.raises(adbc_driver_manager.Error, match="is there already"):
        cursor.adbc_ingest(name, table, mode="create")
    assert cursor.adbc_ingest(name, table, mode="replace") == 3
    assert rows(cursor, f"SELECT count(*) FROM {name}") == [(3,)]


def test_mistakes_are_named(cursor):
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="syntax error"):
        rows(cursor, "SELEC 1")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="did you mean 'words'"):
        rows(cursor, "SELECT * FROM wordz")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="one statement, found 2"):
        rows(cursor, "SELECT 1; SELECT 2")
    with pytest.raises(adbc_driver_manager.Error, match="Divide by zero"):
        rows(cursor, "SELECT 1 / (id - id) FROM words")
    assert rows(cursor, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("statement", [
    "DROP TABLE nothing",
    "DROP VIEW nothing",
    "DROP VIEW words",
    "DROP SCHEMA nothing",
    "DROP SCHEMA public",
    "DROP FUNCTION nothing",
    "CREATE TABLE words AS SELECT 1 AS a",
    "CREATE TABLE words (a INT)",
    "CREATE VIEW words AS SELECT 1 AS a",
    "CREATE SCHEMA public",
    "CREATE DATABASE datafusion",
    "CREATE SCHEMA a.b",
    "CREATE EXTERNAL TABLE x STORED AS NOTHING LOCATION '/nowhere/a.csv'",
    "CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION '{damaged}'",
    "SET datafusion.execution.batch_size = 'x'",
    "SET datafusion.execution.coalesce_batches = 'x'",
    "DEALLOCATE nothing",
    "SELECT arrow_cast(1, 'Nothing')",
    "SELECT named_struct('a')",
])
def test_what_the_caller_did_wrong_is_not_the_servers_fault(cursor, tmp_path, statement):
    damaged = tmp_path / "damaged.parquet"
    damaged.write_text("no parquet")
    with pytest.raises(adbc_driver_manager.ProgrammingError) as refused:
        rows(cursor, statement.format(damaged=damaged))
    assert refused.value.status_code is adbc_driver_manager.AdbcStatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("statement", [
    "SELECT 1 / (value - 5) FROM range(0, 9)",
    "SELECT CAST('x' || value AS INT) FROM range(0, 9)",
    "SELECT CAST('x' || value AS DATE) FROM range(0, 9)",
    "SELECT CAST(value + 300 AS TINYINT) FROM range(0, 9)",
    "SELECT CAST(value + 1e20 AS DECIMAL(5, 2)) FROM range(0, 9)",
])
def test_values_that_cannot_be_computed_with_are_the_callers(embedded, statement):
    with flightsql.connect(embedded.uri) as connection, connection.cursor() as cursor:
        with pytest.raises(adbc_driver_manager.ProgrammingError) as refused:
            rows(cursor, statement)
        code = refused.value.status_code
        assert code is adbc_driver_manager.AdbcStatusCode.INVALID_ARGUMENT


def test_the_first_rows_come_while_the_rest_is_inferred_and_cancel_ends_it(cursor):
    # 4 rows take a millisecond: all of them would take hours.
    cursor.execute("SELECT value FROM ml_predict((SELECT value FROM range(0, 40000000)), "
                   "MODEL echo, DESCRIPTOR(value))")
    assert cursor.fetchone() is not None
    threading.Timer(0.2, cursor.adbc_cancel).start()
    with pytest.raises(adbc_driver_manager.Error, match="(?i)cancel"):
        cursor.fetchall()
    assert rows(cursor, "SELECT 1") == [(1,)]
