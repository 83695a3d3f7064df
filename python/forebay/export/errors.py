"""The one error of the exporter that is meant for its user."""


class ExportError(Exception):
    """Something about the source or the request; the message says what, and what to do."""
