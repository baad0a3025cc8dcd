"""Native code: bytes to records and back. Everything that costs per record or per byte is here, and nothing else.

Rules: it knows no other room of the house; Python objects go in and come out only at its public functions.
"""
