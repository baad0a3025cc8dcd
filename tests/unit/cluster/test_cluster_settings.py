"""The configuration in the terms of the machines: what is set arrives, and what is not is Kafka's on both sides."""

from __future__ import annotations

import socket
from dataclasses import fields, is_dataclass
from typing import Any

from fastq_broker.cluster.controller_channel import ChannelConfig
from fastq_broker.cluster.lifecycle import LifecycleConfig, ListenerAddress
from fastq_broker.cluster.settings import (
    FORWARDING,
    channel_config,
    controller_endpoints,
    fetcher_config,
    lifecycle_config,
    raft_config,
    registration_config,
    static_voters,
)
from fastq_broker.config import BrokerConfig, Listener
from fastq_broker.controller.features import SUPPORTED
from fastq_broker.raft.roles import RaftConfig
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from fastq_broker.replication.fetcher import FetcherConfig

DIRECTORY = b"directory of one"
INCARNATION = b"one incarnation."
SETTINGS = {
    "node.id": "3",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "3@c.example:9093,4@[::1]:9094",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}


def of(**changes: str) -> BrokerConfig:
    return BrokerConfig.from_mapping({**SETTINGS, **{key.replace("_", "."): value for key, value in changes.items()}})


def life(config: BrokerConfig) -> LifecycleConfig:
    return lifecycle_config(
        config,
        cluster_id="c",
        incarnation_id=INCARNATION,
        listeners=[Listener("PLAINTEXT", "h", 9)],
        log_dirs=[DIRECTORY],
        metadata_dir=DIRECTORY,
        previous_epoch=5,
    )


def changed(made: Any, plain: Any) -> dict[str, Any]:
    assert is_dataclass(made)
    return {
        item.name: getattr(made, item.name)
        for item in fields(made)
        if getattr(made, item.name) != getattr(plain, item.name)
    }


def test_what_is_not_set_is_what_the_machines_begin_with() -> None:
    config = of()
    raft = RaftConfig(key=ReplicaKey(3, DIRECTORY), cluster_id="c")
    assert changed(raft_config(config, DIRECTORY, "c"), raft) == {
        "endpoints": {"CONTROLLER": Endpoint("c.example", 9093)},
        "bootstrap": [],
    }
    plain = LifecycleConfig(
        node_id=3,
        cluster_id="c",
        incarnation_id=INCARNATION,
        listeners=[ListenerAddress("PLAINTEXT", "h", 9)],
        features=SUPPORTED,
        log_dirs=[DIRECTORY],
    )
    assert changed(life(config), plain) == {"metadata_dir": DIRECTORY, "previous_epoch": 5}
    assert fetcher_config(config) == FetcherConfig(replica_id=3)
    assert channel_config(config, "n") == ChannelConfig(node_id=3, name="n", moves_on=True)
    assert channel_config(config, FORWARDING) == ChannelConfig(node_id=3, name=FORWARDING)  # asked once by clients


def test_what_is_set_arrives() -> None:
    config = of(
        controller_quorum_election_timeout_ms="1",
        controller_quorum_fetch_timeout_ms="2",
        controller_quorum_election_backoff_max_ms="3",
        controller_quorum_request_timeout_ms="4",
        controller_quorum_retry_backoff_ms="5",
        controller_quorum_fetch_max_bytes="6",
        controller_quorum_auto_join_enable="true",
        controller_quorum_bootstrap_servers="b:1",
        controller_socket_timeout_ms="7",
        broker_heartbeat_interval_ms="8",
        broker_session_timeout_ms="19",
        initial_broker_registration_timeout_ms="10",
        log_dir_failure_timeout_ms="11",
        broker_rack="r",
        replica_fetch_wait_max_ms="12",
        replica_fetch_min_bytes="13",
        replica_fetch_max_bytes="14",
        replica_fetch_response_max_bytes="15",
        replica_fetch_backoff_ms="16",
    )
    assert changed(raft_config(config, DIRECTORY, "c"), RaftConfig(key=ReplicaKey(3, DIRECTORY), cluster_id="c")) == {
        "endpoints": {"CONTROLLER": Endpoint("c.example", 9093)},
        "bootstrap": [Endpoint("b", 1)],
        "joins": True,
        "election_timeout_s": 0.001,
        "fetch_timeout_s": 0.002,
        "election_backoff_max_s": 0.003,
        "request_timeout_s": 0.004,
        "retry_backoff_s": 0.005,
        "fetch_bytes_max": 6,
    }
    assert changed(life(config), life(of())) == {
        "rack": "r",
        "heartbeat_interval_s": 0.008,
        "session_timeout_s": 0.019,
        "registration_timeout_s": 0.01,
        "directory_failure_timeout_s": 0.011,
    }
    assert channel_config(config, "n").answer_timeout_s == 0.007
    assert fetcher_config(config) == FetcherConfig(
        replica_id=3, wait_ms=12, min_bytes=13, partition_bytes_max=14, response_bytes_max=15, backoff_s=0.016
    )


def test_a_broker_observes() -> None:
    config = of(
        process_roles="broker", node_id="7", listeners="PLAINTEXT://h:1", controller_quorum_auto_join_enable="true"
    )
    raft = raft_config(config, DIRECTORY, "c")
    assert (raft.may_vote, raft.joins, raft.endpoints, raft.listener) == (False, False, {}, "CONTROLLER")


def test_voters_that_never_change_are_reached_by_the_first_listener() -> None:
    assert static_voters(of()) == VoterSet(
        [
            Voter(ReplicaKey(3), {"CONTROLLER": Endpoint("c.example", 9093)}),
            Voter(ReplicaKey(4), {"CONTROLLER": Endpoint("::1", 9094)}),
        ]
    )


def test_a_controller_is_reached_where_it_says() -> None:
    told = of(advertised_listeners="PLAINTEXT://h:1,CONTROLLER://told:2")
    assert controller_endpoints(told) == {"CONTROLLER": Endpoint("told", 2)}
    free = of(listeners="PLAINTEXT://h:1,CONTROLLER://127.0.0.1:0")
    assert controller_endpoints(free, {"CONTROLLER": 5}) == {"CONTROLLER": Endpoint("127.0.0.1", 5)}
    everywhere = of(controller_quorum_voters="", controller_quorum_bootstrap_servers="b:1")
    assert controller_endpoints(everywhere) == {"CONTROLLER": Endpoint(socket.gethostname(), 9093)}
    (address,) = registration_config(told, INCARNATION).listeners
    assert address == ListenerAddress("CONTROLLER", "told", 2)


def test_where_voters_are_by_now_arrives() -> None:
    servers = {"controller_quorum_voters": "", "controller_quorum_bootstrap_servers": "h:1,h:2"}
    config = of(**servers, controller_quorum_voter_addresses="1@h:5,2@[::1]:6")
    assert raft_config(config, DIRECTORY, "c").addresses == {1: Endpoint("h", 5), 2: Endpoint("::1", 6)}
