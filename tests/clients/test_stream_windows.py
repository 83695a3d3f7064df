"""Streams that are shuffled window by window, beside what pyarrow knows of the files."""

from __future__ import annotations

import subprocess
import time
import uuid
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.flight as flight
import pyarrow.parquet
import pytest
from conftest import FOREBAY, MODES, Server
from test_stream import all_at_once, ids, reader, take

FILES = 12
WORDS = ["red", "green", "blue", None, "a word with more than the twelve bytes of a view"]
OPTIONS = [
    {},
    {"datafusion.execution.batch_size": "64", "datafusion.execution.target_partitions": "1"},
    {"datafusion.execution.batch_size": "1000", "datafusion.execution.target_partitions": "5"},
]


def run(client, statement):
    info = client.get_flight_info(flight.FlightDescriptor.for_path("sql", statement))
    return client.do_get(info.endpoints[0].ticket).read_all()


def rows_of_file(file):
    """Numbers of rows; one file has none."""
    first = file * 10_000
    return range(first, first + (0 if file == 4 else 300 + 37 * file))


def table(numbers):
    words = [WORDS[number % len(WORDS)] for number in numbers]
    columns = {"id": pyarrow.array(numbers, pyarrow.int64()), "word": words}
    return pyarrow.table(columns)


class Files:
    """Tables: `many` of small files, `large` of one Parquet file, `lines` of one CSV file, both more than 2 MiB,
    `one` of a single row group, and `nothing` without files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("many", "large", "lines", "one", "nothing"):
            (folder / name).mkdir(parents=True)
        for file in range(FILES):
            write = pyarrow.parquet.write_table
            write(table(rows_of_file(file)), folder / f"many/{file:02}.parquet", row_group_size=100)
        plain = {"compression": "none", "use_dictionary": False}
        large = table(range(150_000))
        pyarrow.parquet.write_table(large, folder / "large/0.parquet", row_group_size=2_000, **plain)
        pyarrow.parquet.write_table(large, folder / "one/0.parquet", row_group_size=10**9, **plain)
        pyarrow.csv.write_csv(large, folder / "lines/0.csv")
        assert min((folder / "large/0.parquet").stat().st_size,
                   (folder / "lines/0.csv").stat().st_size) > 2 << 20

    def known_by(self, client) -> None:
        for name in ("many", "large", "one", "lines", "nothing"):
            kind = "CSV OPTIONS ('format.has_header' 'true')" if name == "lines" else "PARQUET"
            columns = "(id BIGINT, word VARCHAR)" if name == "nothing" else ""
            at = self.folder / name
            kind, options = kind.split(" ", 1) if " " in kind else (kind, "")
            run(client, f"CREATE EXTERNAL TABLE {name} {columns} STORED AS {kind} LOCATION '{at}/' {options}")


class Connected:
    """A server that knows the files, with a connection."""

    def __init__(self, folder: Path, files: Files, mode: str, more_workers: int) -> None:
        self.server = Server(folder, *MODES[mode])
        self.workers = []
        for _ in range(more_workers):
            command = [FOREBAY, "worker", "--scheduler", self.server.scheduler, "--cpus", "2"]
            command += ["--emulated-accelerators", "1"]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert worker.stdout.readline().startswith("working for ")
            self.workers.append(worker)
        self.client = flight.connect(self.server.uri)
        files.known_by(self.client)

    def stream(self, table="many", **definition):
        """A stream of its own."""
        definition = {"name": str(uuid.uuid4()), "query": f"SELECT * FROM {table}", **definition}
        return reader(self.client, **definition)

    def rows(self, *arguments, **definition):
        """All rows, in their order, and their columns."""
        batches = take(self.stream(*arguments, **definition))
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def stop(self) -> None:
        self.client.close()
        for worker in self.workers:
            worker.terminate()
            worker.wait(60)
        self.server.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def servers(files, tmp_path_factory):
    """One process, and clusters of one worker and of two."""
    all_of_them = [
        Connected(tmp_path_factory.mktemp("windows"), files, mode, more)
        for mode, more in [("embedded", 0), ("cluster", 0), ("cluster", 1)]
    ]
    yield all_of_them
    for server in all_of_them:
        server.stop()


@pytest.fixture(scope="module")
def one(servers):
    return servers[0]


QUERIES = {
    "files": ("SELECT id, word FROM many", 10_000),
    "pieces of Parquet": ("SELECT id, word FROM large", "1 MiB"),
    "pieces of CSV": ("SELECT id, word FROM lines", "2 MiB"),
    "conditions": ("SELECT id, upper(word) AS word FROM many WHERE id % 3 = 1", 10_000),
    "union": ("SELECT id, word FROM many UNION ALL SELECT -id, word FROM many WHERE id > 50000", 9_000),
    "join": ("SELECT many.id, w.word FROM many LEFT JOIN words w ON many.id % 4 = w.id", 10_000),
    "models": ("SELECT id, digest FROM ml_predict((SELECT * FROM many WHERE id % 10 = 0), "
               "MODEL echo, DESCRIPTOR(id))", 20_000),
}


@pytest.mark.parametrize("kind", QUERIES)
def test_the_order_is_the_same_wherever_the_query_runs(servers, files, kind, tmp_path):
    query, window = QUERIES[kind]
    if kind == "join":
        # A table in memory is no file; the other side of a join is read by each window.
        pyarrow.csv.write_csv(pyarrow.table({"id": [1, 2], "word": ["one", "two"]}), tmp_path / "w.csv")
        for server in servers:
            run(server.client, f"CREATE OR REPLACE EXTERNAL TABLE names STORED AS CSV LOCATION '{tmp_path}/w.csv' "
                               "OPTIONS ('format.has_header' 'true')")
        query = query.replace("words", "names")
    definition = {"query": query, "shuffle": 7, "shuffle_window": window}
    expected = [tuple(row.values()) for row in run(servers[0].client, query).to_pylist()]
    first = servers[0].rows(**definition)
    assert sorted(first, key=str) == sorted(expected, key=str)
    for server in servers:
        for options in OPTIONS:
            assert server.rows(**definition, options=options) == first, (server.workers, options)
    for other in ({"shuffle": 8}, {"epoch": 1}, {"shuffle_window": "64 MiB"}):
        order = servers[0].rows(**{**definition, **other})
        assert order != first and sorted(order, key=str) == sorted(first, key=str), other


def test_what_pyarrow_reads_is_what_comes(one, files):
    for name in ("many", "large", "one"):
        expected = pyarrow.parquet.read_table(files.folder / name).to_pylist()
        found = one.rows(name, shuffle=1, shuffle_window=20_000 if name == "many" else "1 MiB")
        assert sorted(found, key=str) == sorted((tuple(row.values()) for row in expected), key=str)


def test_all_rows_at_once_have_one_order_too(servers):
    """Whether texts are views is the affair of whoever reads them."""
    first = servers[0].rows(shuffle=7)
    assert [server.rows(shuffle=7) for server in servers[1:]] == [first, first]


def test_rows_never_leave_their_window_and_are_mixed_in_it(one, files):
    sizes = [(files.folder / f"many/{file:02}.parquet").stat().st_size for file in range(FILES)]
    order = [number // 10_000 for number, _ in one.rows(shuffle=3, shuffle_window=3 * max(sizes))]
    spans = {file: (order.index(file), len(order) - order[::-1].index(file)) for file in set(order)}
    windows, end = [], 0
    for file, (first, last) in sorted(spans.items(), key=lambda span: span[1]):
        if first >= end:
            windows.append([])
        windows[-1].append(file)
        end = max(end, last)
    assert sum(len(window) for window in windows) == FILES - 1, "one has no rows"
    assert len(windows) >= FILES // 4
    assert max(len(window) for window in windows) >= 3, "files were small enough for more in one window"
    assert windows != sorted(windows), "the files come in the order of the seed"
    for window in windows:
        first = min(spans[file][0] for file in window)
        last = max(spans[file][1] for file in window)
        for file in window:
            places = [place for place in range(first, last) if order[place] == file]
            # Each file's rows are all over the window.
            middle = sum(places) / len(places)
            assert abs(middle - (first + last) / 2) < (last - first) / 8, (window, file)


# Rows that refer to common values are sorted in parts, which are merged while they are read.
MERGED = "SELECT id, arrow_cast(id % 7, 'Dictionary(Int32, Int64)') AS word, text FROM wide"


def wide(folder):
    """A statement that makes a table of files in a folder."""
    (folder / "wide").mkdir()
    plain = {"compression": "none", "use_dictionary": False}
    for file in range(12):
        numbers = range(file * 50_000, (file + 1) * 50_000)
        rows = pyarrow.table({"id": numbers, "text": [f"{number:0100}" for number in numbers]})
        pyarrow.parquet.write_table(rows, folder / f"wide/{file:02}.parquet", row_group_size=5_000, **plain)
    return f"CREATE EXTERNAL TABLE wide STORED AS PARQUET LOCATION '{folder}/wide/';"


@pytest.mark.parametrize(
    "limit, query", [("100MB", "SELECT * FROM wide"), ("150MB", "SELECT * FROM wide"), ("150MB", MERGED)]
)
def test_with_little_memory_fewer_windows_are_made_ahead_and_none_is_lost(tmp_path, limit, query):
    """The rows of a window take some 20 MB, and twice as much while they are sorted."""
    table = wide(tmp_path)
    orders = []
    for arguments in ([], ["--memory-limit", limit]):
        server = Server(tmp_path / str(len(orders)), *MODES["embedded"], *arguments, first=table)
        try:
            with flight.connect(server.uri) as client:
                stream = reader(client, name="s", query=query, shuffle=3, shuffle_window="20 MiB")
                orders.append(ids(take(stream)))
        finally:
            server.stop()
    assert sorted(orders[0]) == list(range(600_000))
    assert orders[1] == orders[0]


def test_streams_that_are_closed_give_back_what_their_windows_hold(tmp_path):
    """What eight hold that are not closed is more than there is."""
    server = Server(tmp_path / "server", *MODES["embedded"], "--memory-limit", "250MB", first=wide(tmp_path))
    try:
        with flight.connect(server.uri) as client:
            for name in map(str, range(8)):
                stream = reader(client, name=name, query=MERGED, shuffle=3, shuffle_window="20 MiB")
                assert take(stream, 1)
                # Windows ahead have got to their first rows, and wait to be read.
                time.sleep(0.5)
                list(client.do_action(flight.Action("forebay.stream.close", name.encode())))
            stream = reader(client, name="all", query=MERGED, shuffle=3, shuffle_window="20 MiB")
            assert sorted(ids(take(stream))) == list(range(600_000))
    finally:
        server.stop()


def test_pieces_of_one_file_come_from_all_over_it(one):
    order = [number for number, _ in one.rows("lines", shuffle=5, shuffle_window="1 MiB")]
    assert sorted(order) == list(range(150_000))
    early = order[:3_000]
    # They are of one piece, which is somewhere.
    assert max(early) - min(early) < 75_000
    whole = [number for number, _ in one.rows("lines", shuffle=5, shuffle_window="1 GiB")]
    assert max(whole[:1_000]) - min(whole[:1_000]) > 140_000


def test_tables_without_rows_and_windows_larger_than_a_table(one):
    assert one.rows("nothing", shuffle=1, shuffle_window=1) == []
    assert one.rows("many WHERE false", shuffle=1, shuffle_window=1) == []
    assert one.rows("many WHERE id < 0", shuffle=1, shuffle_window=1) == []
    whole = one.rows(shuffle=1, shuffle_window=1 << 63)
    # With one window it is the shuffle of all rows.
    assert whole == one.rows(shuffle=1)
    both = "SELECT * FROM nothing UNION ALL SELECT * FROM many"
    assert len(one.rows(query=both, shuffle=1, shuffle_window=10_000)) == len(whole)


def test_several_readers(servers):
    expected = sorted(number for number, _ in servers[0].rows(shuffle=1))
    for server in servers[:2]:
        clients = [flight.connect(server.server.uri) for _ in range(3)]

        def streams(clients=clients, **definition):
            definition = {"name": str(uuid.uuid4()), "query": "SELECT * FROM many", "shuffle": 1,
                          "shuffle_window": 20_000, "batch_rows": 50, "readers": 3, **definition}
            each = definition.pop("each", [{}] * 3)
            return all_at_once([reader(client, **definition, **own)
                                for client, own in zip(clients, each, strict=True)])

        assert sorted(ids(sum(streams(), []))) == expected
        for found in streams(mode="shared"):
            assert ids(found) == ids(take(server.stream(shuffle=1, shuffle_window=20_000)))
        coordinated = streams(mode="coordinated", length="word", batch_rows=8,
                              each=[{"reader": at} for at in range(3)])
        assert sorted(ids(sum(coordinated, []))) == expected
        for client in clients:
            client.close()


def csv_files(folder: Path, client, table: str) -> None:
    folder.mkdir()
    for file in range(8):
        rows = "".join(f"{file * 500 + row}\n" for row in range(500))
        (folder / f"{file}.csv").write_text(f"id\n{rows}")
    run(client, f"CREATE EXTERNAL TABLE {table} (id BIGINT) STORED AS CSV LOCATION '{folder}/' "
                "OPTIONS ('format.has_header' 'true')")


def until_error(stream):
    """What comes before an error, and that."""
    found = []
    try:
        while True:
            found += stream.read_chunk().data["id"].to_pylist()
    except StopIteration:
        raise AssertionError("all rows came") from None
    except (flight.FlightError, pyarrow.ArrowException) as error:
        return found, str(error)


@pytest.mark.parametrize("at", range(3), ids=["embedded", "one worker", "two workers"])
def test_windows_before_a_damaged_file_are_read(servers, tmp_path, at):
    server, name = servers[at], f"damaged_{at}"
    csv_files(tmp_path / "in", server.client, name)
    definition = {"shuffle": 1, "shuffle_window": 1}
    order = [number for (number,) in server.rows(name, **definition)]
    last = tmp_path / f"in/{order[-1] // 500}.csv"
    last.write_text(last.read_text().replace(f"{order[-1]}\n", "oops\n"))
    found, error = until_error(server.stream(name, **definition))
    assert found == order[:-500]
    assert "oops" in error
    # All rows together have no first row before all have been read.
    found, error = until_error(server.stream(name, shuffle=1))
    assert found == [] and "oops" in error


def test_a_file_that_changes_meanwhile_is_noticed(one, tmp_path):
    csv_files(tmp_path / "in", one.client, "changing")
    definition = {"shuffle": 1, "shuffle_window": 1}
    order = [number for (number,) in one.rows("changing", **definition)]
    # Many times what is on its way to a reader.
    query = "SELECT id, repeat('x', 20000) AS text FROM changing"
    stream = one.stream(query=query, batch_rows=50, **definition)
    begun = stream.read_chunk().data["id"].to_pylist()
    with (tmp_path / f"in/{order[-1] // 500}.csv").open("a") as last:
        last.write("7\n")
    found, error = until_error(stream)
    assert sorted(begun + found) == sorted(order[:-500])
    assert "it was changed while the stream read it" in error


def test_queries_that_have_no_parts_are_refused(one):
    model = "ml_predict(TABLE many, MODEL echo, DESCRIPTOR(id))"
    for query, said in [
        ("SELECT word, count(*) FROM many GROUP BY word", "GROUP BY"),
        ("SELECT DISTINCT word FROM many", "DISTINCT"),
        ("SELECT id FROM many LIMIT 5", "LIMIT"),
        (f"SELECT id FROM {model} LIMIT 5", "LIMIT"),
        ("SELECT id FROM many ORDER BY id", "leave out ORDER BY"),
        ("SELECT id FROM many ORDER BY id LIMIT 5", "ORDER BY with LIMIT"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS r FROM many", "window function"),
        ("SELECT m.id FROM many m FULL JOIN many n ON m.id = n.id + 1", "FULL JOIN"),
        (f"SELECT m.id, digest FROM many m LEFT JOIN {model} p ON m.id = p.id", "would compute model 'echo'"),
        ("SELECT m.id FROM many m LEFT JOIN (SELECT id FROM many WHERE random() < 0.5) n "
         "ON m.id = n.id", "random()"),
        ("SELECT id FROM words", "in memory"),
        ("SELECT value AS id FROM range(0, 10)", "range()"),
        ("SELECT 1 AS id", "no files"),
    ]:
        with pytest.raises(pyarrow.ArrowInvalid) as refused:
            one.stream(query=query, shuffle=1, shuffle_window=1)
        message = str(refused.value)
        assert said in message and "leave out 'shuffle_window'" in message, f"{query}: {message}"
    for wrong, said in [
        ({"shuffle_window": "1 MiB"}, "'shuffle_window' needs 'shuffle'"),
        ({"shuffle": 1, "shuffle_window": "much"}, 'shuffle_window is "much"'),
        ({"shuffle": 1, "shuffle_window": 0}, "shuffle_window is 0"),
    ]:
        with pytest.raises(pyarrow.ArrowInvalid, match=said):
            one.stream(**wrong)
