"""A node's configuration, in the terms of the machines that run it: milliseconds to seconds, listeners to where a node is reached.

Rules: a machine's own defaults are Kafka's, and so are the configuration's; a test holds the two equal. `ports` are those that were bound,
by listener, for who listens on a free one. A controller that listens on all interfaces, with nothing advertised, is reached where
controller.quorum.voters says, else by this machine's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastq_broker.cluster.controller_channel import ChannelConfig
from fastq_broker.cluster.lifecycle import LifecycleConfig, ListenerAddress
from fastq_broker.cluster.registration import RegistrationConfig
from fastq_broker.config import BrokerConfig
from fastq_broker.config_listeners import PROTOCOLS, Listener, reachable
from fastq_broker.controller.features import KRAFT_VERSION, SUPPORTED
from fastq_broker.raft.roles import RaftConfig
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from fastq_broker.replication.fetcher import FetcherConfig

Ports = Mapping[str, int]
_NO_PORTS: Ports = {}
FORWARDING = "forwarding"


def controller_endpoints(config: BrokerConfig, ports: Ports = _NO_PORTS) -> dict[str, Endpoint]:
    """Where this controller is reached, by listener, in the order of controller.listener.names; empty for a broker only."""
    voter = config.controller_quorum_voters.get(config.node_id)
    return {
        listener.name: Endpoint(
            listener.host or (voter.host if voter is not None else reachable("")),
            listener.port or ports.get(listener.name, 0),
        )
        for listener in config.advertised_controller_listeners
    }


def raft_config(config: BrokerConfig, directory_id: bytes, cluster_id: str, ports: Ports = _NO_PORTS) -> RaftConfig:
    """This node as a member of the metadata quorum: a voter or a candidate for one where it is a controller, else an observer."""
    is_controller = "controller" in config.process_roles
    return RaftConfig(
        key=ReplicaKey(config.node_id, directory_id),
        cluster_id=cluster_id,
        listener=config.controller_listener_names[0],
        endpoints=controller_endpoints(config, ports),
        bootstrap=[Endpoint(*place) for place in config.controller_quorum_bootstrap_servers],
        may_vote=is_controller,
        joins=is_controller and config.controller_quorum_auto_join_enable,
        versions=SUPPORTED[KRAFT_VERSION],
        addresses={node_id: Endpoint(*place) for node_id, place in config.controller_quorum_voter_addresses.items()},
        election_timeout_s=config.controller_quorum_election_timeout_ms / 1000,
        fetch_timeout_s=config.controller_quorum_fetch_timeout_ms / 1000,
        election_backoff_max_s=config.controller_quorum_election_backoff_max_ms / 1000,
        request_timeout_s=config.controller_quorum_request_timeout_ms / 1000,
        retry_backoff_s=config.controller_quorum_retry_backoff_ms / 1000,
        fetch_bytes_max=config.controller_quorum_fetch_max_bytes,
    )


def static_voters(config: BrokerConfig) -> VoterSet:
    """The voters of controller.quorum.voters, which count until the log names others."""
    listener = config.controller_listener_names[0]
    return VoterSet(
        Voter(ReplicaKey(node_id), {listener: Endpoint(*place)})
        for node_id, place in config.controller_quorum_voters.items()
    )


def lifecycle_config(
    config: BrokerConfig,
    *,
    cluster_id: str,
    incarnation_id: bytes,
    listeners: Sequence[Listener],
    log_dirs: Sequence[bytes],
    metadata_dir: bytes | None,
    previous_epoch: int,
) -> LifecycleConfig:
    """This broker's life. `listeners` are those that it advertises, with the ports that were bound."""
    return LifecycleConfig(
        node_id=config.node_id,
        cluster_id=cluster_id,
        incarnation_id=incarnation_id,
        listeners=[_address(item, item.host, item.port) for item in listeners],
        features=SUPPORTED,
        log_dirs=log_dirs,
        rack=config.broker_rack,
        metadata_dir=metadata_dir,
        previous_epoch=previous_epoch,
        registration_timeout_s=config.initial_broker_registration_timeout_ms / 1000,
        heartbeat_interval_s=config.broker_heartbeat_interval_ms / 1000,
        session_timeout_s=config.broker_session_timeout_ms / 1000,
        directory_failure_timeout_s=config.log_dir_failure_timeout_ms / 1000,
    )


def registration_config(config: BrokerConfig, incarnation_id: bytes, ports: Ports = _NO_PORTS) -> RegistrationConfig:
    """This controller's registration."""
    places = controller_endpoints(config, ports)
    return RegistrationConfig(
        node_id=config.node_id,
        incarnation_id=incarnation_id,
        listeners=[_address(item, *places[item.name]) for item in config.advertised_controller_listeners],
        features=SUPPORTED,
    )


def _address(listener: Listener, host: str, port: int) -> ListenerAddress:
    return ListenerAddress(listener.name, host, port, PROTOCOLS.index(listener.security_protocol))


def channel_config(config: BrokerConfig, name: str) -> ChannelConfig:
    """A channel of this broker to the active controller; `name` is for its log. What clients ask is asked of the next one not at once."""
    return ChannelConfig(
        node_id=config.node_id,
        name=name,
        answer_timeout_s=config.controller_socket_timeout_ms / 1000,
        moves_on=name != FORWARDING,
    )


def fetcher_config(config: BrokerConfig) -> FetcherConfig:
    """How this broker fetches from leaders."""
    return FetcherConfig(
        replica_id=config.node_id,
        wait_ms=config.replica_fetch_wait_max_ms,
        min_bytes=config.replica_fetch_min_bytes,
        partition_bytes_max=config.replica_fetch_max_bytes,
        response_bytes_max=config.replica_fetch_response_max_bytes,
        backoff_s=max(config.replica_fetch_backoff_ms, 1) / 1000,  # none at all would be turns without a pause
    )
