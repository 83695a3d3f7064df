"""Forebay: machine learning models inside SQL queries."""
