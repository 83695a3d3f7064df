"""Forebay: machine learning models inside SQL queries.

    import forebay

    with forebay.connect() as con:
        con.execute("CREATE MODEL minilm LOCATION 'all-minilm-l6-v2'")
        table = con.execute("SELECT ml_predict(MODEL minilm, 'a good day')").fetch_arrow_table()
"""

from ._connect import connect

__all__ = ["connect"]
