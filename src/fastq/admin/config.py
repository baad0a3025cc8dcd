"""Configuration of the admin clients."""

from __future__ import annotations

from dataclasses import dataclass

from fastq.config import INT32_MAX, ClientConfig, ClientOptions, option


class AdminOptions(ClientOptions, total=False):
    """Keyword arguments of `Admin` and `AsyncAdmin`; the fields of `AdminConfig`."""

    default_api_timeout_ms: int


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """`ClientConfig`, and how long an operation may take when its call does not say."""

    default_api_timeout_ms: int = option(
        60_000, low=1, high=INT32_MAX, doc="how long an operation may take in all, retries included"
    )
