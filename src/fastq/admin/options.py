"""The keyword arguments of the admin clients, with their types; rules as in fastq.client_options."""

from __future__ import annotations

from fastq.client_options import ClientOptions


class AdminOptions(ClientOptions, total=False):
    """Keyword arguments of `Admin` and `AsyncAdmin`; the fields of `AdminConfig`."""

    default_api_timeout_ms: int
