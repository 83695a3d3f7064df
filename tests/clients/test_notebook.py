"""Progress on a terminal and in a notebook, whose interrupt ends the query."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading

import nbclient
import nbformat
import pytest
from conftest import ECHO, ROOT

SETUP = f"""
import forebay
con = forebay.connect(catalog={{folder!r}}, server_options=["--emulated-accelerators", "1"])
cursor = con.cursor()
cursor.execute("CREATE OR REPLACE MODEL echo LOCATION '{ECHO}'")
cursor.execute("CREATE TABLE numbers AS SELECT value AS n FROM range(0, {{rows}})")
"""
QUERY = 'cursor.execute("SELECT max(digest) FROM ml_predict(TABLE numbers, MODEL echo, DESCRIPTOR(n))")\n'
# 4 rows take a millisecond.
SECONDS, HOURS = 12_000, 40_000_000


def on_terminal(program: str) -> str:
    """What a program writes on a terminal's standard error."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, stderr=theirs, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                written += os.read(ours, 1024)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert process.returncode == 0, written
    return written.decode()


def test_a_terminal_shows_how_much_is_done_and_is_left_clean(tmp_path):
    setup = SETUP.format(folder=str(tmp_path), rows=SECONDS)
    written = on_terminal(f"{setup}{QUERY}print(cursor.fetchall())")
    lines = written.split("\r\x1b[2K")
    assert (lines[0], lines[-1]) == ("", "")
    shares = [int(share) for share in re.findall(r"\] (\d+)% \d+ s", written)]
    assert shares and shares == sorted(shares)
    assert any(0 < share <= 100 for share in shares)


@pytest.mark.parametrize("query", ["cursor.execute('SELECT 1')\n", QUERY])
def test_nothing_is_shown_of_quick_queries_nor_to_those_who_want_nothing(tmp_path, query):
    rows = SECONDS if query == QUERY else 1
    setup = SETUP.format(folder=str(tmp_path), rows=rows)
    if query == QUERY:
        setup = setup.replace("server_options", "progress=False, server_options")
    else:
        # Quick is what ends before that, however busy the machine is.
        setup = f"import forebay._progress\nforebay._progress.SHOWN_AFTER_SECONDS = 60\n{setup}"
    assert on_terminal(f"{setup}{query}cursor.fetchall()") == ""


def notebook(*cells: str) -> nbclient.NotebookClient:
    """A notebook of these cells, and who executes it."""
    cells = [nbformat.v4.new_code_cell(f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})"),
             *map(nbformat.v4.new_code_cell, cells)]
    book = nbformat.v4.new_notebook(cells=cells)
    return nbclient.NotebookClient(book, timeout=120, kernel_name="python3")


def texts(cell) -> list[str]:
    """The outputs of a cell."""
    return [output["data"]["text/plain"] for output in cell["outputs"] if "data" in output]


def test_a_notebook_shows_progress_and_rows(tmp_path):
    setup = SETUP.format(folder=str(tmp_path), rows=SECONDS)
    client = notebook(setup, f"{QUERY}cursor.fetch_df().shape", "con.close()")
    executed = client.execute()
    shown, result = texts(executed["cells"][2])
    assert result == "(1, 1)"
    assert re.fullmatch(r"\d+\.\d s", shown)
    assert executed["cells"][3]["outputs"] == []


def test_a_notebooks_interrupt_ends_the_query_and_the_session_goes_on(tmp_path):
    setup = SETUP.format(folder=str(tmp_path), rows=10).replace("TABLE numbers", "VIEW numbers")
    endless = QUERY.replace("TABLE numbers", "(SELECT value AS n FROM range(0, 40000000))")
    client = notebook(setup, f"{endless}cursor.fetchall()", "con.execute('SELECT 1').fetchall()")
    with client.setup_kernel():
        client.execute_cell(client.nb.cells[0], 0)
        client.execute_cell(client.nb.cells[1], 1)
        # As Jupyter's stop button does.
        threading.Timer(2, os.killpg, (client.km.provisioner.pgid, signal.SIGINT)).start()
        with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
            client.execute_cell(client.nb.cells[2], 2)
        client.execute_cell(client.nb.cells[3], 3)
    assert texts(client.nb.cells[3]) == ["[(1,)]"]
