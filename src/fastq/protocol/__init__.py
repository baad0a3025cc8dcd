"""The protocol without I/O: messages, headers and frames, versions, ids.

Rules: importing this package loads no message module; `fastq.protocol.messages` does so class by class.
"""

from fastq._native.wire import DecodeError, EncodeError, Reader, Writer
from fastq.protocol.api import APIS, ApiInfo, ApiKey, request_header_version, response_header_version
from fastq.protocol.negotiation import BrokerVersions

__all__ = [
    "APIS",
    "ApiInfo",
    "ApiKey",
    "BrokerVersions",
    "DecodeError",
    "EncodeError",
    "Reader",
    "Writer",
    "request_header_version",
    "response_header_version",
]
