"""Answers statements with DuckDB: lines of JSON, a text in and its rows or an error out."""

import json
import sys

import duckdb

database = duckdb.connect(config={"threads": 1})
for line in sys.stdin:
    try:
        rows = database.execute(json.loads(line)).fetchall()
        texts = [" ".join("NULL" if value is None else str(value) for value in row) for row in rows]
        answer = {"Ok": texts}
    except duckdb.Error as error:
        answer = {"Err": str(error)}
    print(json.dumps(answer), flush=True)
