"""The web console: a process of its own, and a client of any Kafka cluster (extra `console`, command `fastq console`).

Rules: nothing of host, class, path or URL comes from a browser: what is asked is a topic, a group, a number or a piece of data, and
clusters are named by whoever starts the console. Filters are data and never code. A page loads what it shows and no more. No secret is
shown. What changes something is a POST with a token of the session, from the console's own pages, within the user's role, and is in the
audit log.
"""
