"""Configuration of the admin clients."""

from __future__ import annotations

from typing import ClassVar

from fastq.config import ClientConfig
from fastq.settings import INT32_MAX, option


class AdminConfig(ClientConfig):
    """`ClientConfig`, and how long an operation may take when its call does not say."""

    PAGE: ClassVar[str] = "docs/reference/admin-settings.md"
    default_api_timeout_ms: int = option(
        60_000, low=1, high=INT32_MAX, doc="how long an operation may take in all, retries included"
    )
