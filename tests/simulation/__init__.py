"""Whole clusters of real brokers in one process: virtual time, a network and disks that fail, everything drawn from one seed.

world.py      time, and the event loops of the hosts
network.py    connections between the hosts
node.py       a host with a real broker on it, and its disk
client.py     a Kafka client of a few lines, and what clients do: produce, consume
operator.py   who has nodes join and go, moves partitions and changes features
own_client.py fastq's own producer and consumer, as users have them
transactions.py  who reads, processes and writes in transactions
consumer_group.py  the same, as members of a group of KIP-848
checks.py     what always holds
scenario.py   one seed: a cluster, its clients, and the faults that befall it
mutations.py  mistakes put into the broker's own code, which the checks have to find
__main__.py   `make simulate SEEDS=200`
"""
