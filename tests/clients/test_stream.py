"""One query's rows for many training clients, with plain pyarrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid

import pyarrow
import pyarrow.flight as flight
import pytest
from conftest import ROOT

ROWS = 20_000
QUERY = f"SELECT value AS id, value % 997 AS tokens, repeat('x', 50) AS text FROM range(0, {ROWS})"


def reader(client, **definition):
    """The stream of a definition; `read_chunk` takes a batch."""
    text = json.dumps({"query": QUERY, **definition})
    info = client.get_flight_info(flight.FlightDescriptor.for_path("forebay.stream", text))
    return client.do_get(info.endpoints[0].ticket)


def ids(batches):
    return [value for batch in batches for value in batch["id"].to_pylist()]


def take(stream, limit=None):
    """Batches of a stream, all or so many."""
    batches = []
    while limit is None or len(batches) < limit:
        try:
            batches.append(stream.read_chunk().data)
        except StopIteration:
            break
    return batches


def all_at_once(streams):
    """What each of several readers gets."""
    found = [None] * len(streams)

    def read(at):
        found[at] = take(streams[at])

    threads = [threading.Thread(target=read, args=(at,)) for at in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture
def clients(server):
    opened = [flight.connect(server.uri) for _ in range(4)]
    yield opened
    for client in opened:
        client.close()


@pytest.fixture
def name():
    return str(uuid.uuid4())


def test_each_row_goes_to_exactly_one_reader(clients, name):
    streams = [reader(client, name=name, readers=3, batch_rows=100) for client in clients[:3]]
    found = all_at_once(streams)
    assert sorted(ids(sum(found, []))) == list(range(ROWS))
    assert {batch.num_rows for batch in sum(found, [])} == {100}
    # Whoever comes after the last row gets none of them again.
    assert take(reader(clients[3], name=name, readers=3, batch_rows=100)) == []


def test_late_readers_get_the_rest(clients, name):
    first = reader(clients[0], name=name, batch_rows=100)
    begun = take(first, 5)
    late = reader(clients[1], name=name, batch_rows=100)
    rest = all_at_once([first, late])
    assert sorted(ids(begun + rest[0] + rest[1])) == list(range(ROWS))


def test_a_reader_that_goes_leaves_the_rest_to_others(clients, name):
    # Many times what a connection holds on its way.
    wide = {"name": name, "batch_rows": 100, "query": QUERY.replace("50)", "3000)")}
    gone = reader(clients[0], **wide)
    begun = take(gone, 5)
    gone.cancel()
    rest = ids(take(reader(clients[1], **wide)))
    # What was on its way to the one that went is lost with it; nothing comes twice.
    assert not set(ids(begun)) & set(rest)
    assert len(set(rest)) == len(rest) >= ROWS / 2


def test_all_readers_of_a_shared_stream_get_all_rows(clients, name):
    streams = [reader(client, name=name, mode="shared", readers=3) for client in clients[:3]]
    for found in all_at_once(streams):
        assert sorted(ids(found)) == list(range(ROWS))


def test_coordinated_readers_get_rows_of_similar_length_in_each_round(clients, name):
    definition = {"name": name, "mode": "coordinated", "length": "tokens", "batch_rows": 8}
    streams = [
        reader(client, **definition, readers=4, reader=at) for at, client in enumerate(clients)
    ]
    with pytest.raises(pyarrow.ArrowException, match="another connection is reader 2 already"):
        reader(clients[0], **definition, readers=4, reader=2).read_chunk()
    found = all_at_once(streams)
    assert sorted(ids(sum(found, []))) == list(range(ROWS))
    assert len({len(batches) for batches in found}) == 1, "all have the same rounds"
    spreads = []
    for batches in zip(*found, strict=True):
        lengths = [length for batch in batches for length in batch["tokens"].to_pylist()]
        spreads.append(max(lengths) - min(lengths))
    # Rows as they come differ by 32 and more in each 32; of 16 rounds that are sorted together, a
    # round has a sixteenth of the spread.
    assert sum(spreads) / len(spreads) < 997 / 12


def test_a_seed_shuffles_all_rows_and_each_epoch_anew(clients, name):
    def order(epoch, seed, name=name):
        return ids(take(reader(clients[0], name=name, shuffle=seed, epoch=epoch)))

    first, second = order(0, 7), order(1, 7)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert first != sorted(first)
    # The whole is shuffled, not parts of it.
    early = first[: ROWS // 10]
    assert 0.4 * ROWS < sum(early) / len(early) < 0.6 * ROWS
    assert order(0, 7, f"{name} again") == first
    assert order(0, 8, f"{name} other") != first


def test_predictions_are_streamed(clients, name):
    query = "SELECT id, digest FROM ml_predict((SELECT value AS id FROM range(0, 1000)), " \
            "MODEL echo, DESCRIPTOR(id))"
    streams = [reader(client, name=name, query=query, readers=2) for client in clients[:2]]
    found = all_at_once(streams)
    assert sorted(ids(sum(found, []))) == list(range(1000))


def test_mistakes_are_named(clients, name):
    client = clients[0]
    take(reader(client, name=name), 1)
    wrong = [
        (pyarrow.ArrowException, {"name": name, "batch_rows": 3}, "another definition"),
        (pyarrow.ArrowInvalid, {"name": f"{name}1", "query": "SELECT"}, "syntax error"),
        (pyarrow.ArrowInvalid, {"name": f"{name}2", "query": "DROP TABLE words"}, "reads a query"),
        (pyarrow.ArrowInvalid, {"name": f"{name}3", "options": {"forebay.nonsense": "1"}}, "nonsense"),
        (pyarrow.ArrowInvalid, {"name": f"{name}4", "mode": "coordinated", "readers": 1, "reader": 0,
                                "batch_rows": 1, "length": "size"}, "no column 'size'"),
        (pyarrow.ArrowInvalid, {"name": ""}, "the name is empty"),
        (pyarrow.ArrowInvalid, {"name": f"{name}6", "readers": 1 << 31}, "readers is 2147483648"),
    ]
    for kind, definition, message in wrong:
        with pytest.raises(kind, match=message):
            reader(client, **definition)
    broken = reader(client, name=f"{name}5", query="SELECT 1 / (value - 500) FROM range(0, 1000)")
    with pytest.raises((flight.FlightError, pyarrow.ArrowException), match="[Dd]ivide by zero"):
        take(broken)


def test_a_stream_can_be_closed(clients, name):
    client = clients[0]
    stream = reader(client, name=name, query=QUERY.replace(str(ROWS), "100000000"), batch_rows=100)
    take(stream, 1)
    list(client.do_action(flight.Action("forebay.stream.close", name.encode())))
    with pytest.raises(flight.FlightCancelledError, match="closed"):
        take(stream)
    with pytest.raises(pyarrow.ArrowKeyError, match="no stream"):
        list(client.do_action(flight.Action("forebay.stream.close", name.encode())))


def test_pytorch_reads_a_stream(server, name):
    """The example, in an environment that has torch, with two workers that share the rows."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    command = [str(ROOT / "tools/python"), str(ROOT / "examples/pytorch_stream.py"), server.uri]
    command += [QUERY, "--name", name, "--epochs", "2", "--shuffle", "1", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": packages}
    said = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr
    batches = (ROWS + 255) // 256
    expected = [f"epoch {epoch}: {batches} batches, {ROWS} rows" for epoch in range(2)]
    assert said.stdout.splitlines() == expected
