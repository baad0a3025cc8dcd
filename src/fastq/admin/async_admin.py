# Made by tools/generate_async_admin.py: change admin.py, then `make generate`.
"""The asyncio admin client: the methods of `Admin`, awaited.

Rules of this file: a method builds an operation of `core.py` and runs it; everything that is decided, is decided there.
Time-outs are seconds, for the whole operation with its retries; None means `default_api_timeout_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastq.admin import core, descriptions, resource_configs
from fastq.admin.arguments import names_of, operations_of, resource_of
from fastq.admin.async_cluster_admin import AsyncClusterAdmin
from fastq.admin.async_group_admin import AsyncGroupAdmin
from fastq.admin.config import AdminConfig
from fastq.admin.offsets import list_offsets
from fastq.admin.types import (
    AlterConfigOp,
    ApiVersion,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    LogDirDescription,
    NewPartitions,
    NewTopic,
    OffsetResult,
    OffsetSpec,
    Outcomes,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from fastq.metadata import TopicPartition
from fastq.net.client import AsyncClient
from fastq.timeouts import check_timeout

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from fastq.admin.options import AdminOptions


class AsyncAdmin(AsyncGroupAdmin, AsyncClusterAdmin):
    """Topics, configurations, records, groups, transactions, and the cluster with its nodes and replicas. For one event loop.

    Takes the fields of `AdminConfig` as keyword arguments, or a mapping with Kafka's names (or an `AdminConfig`) first:
    `AsyncAdmin({"bootstrap.servers": "host:9092"})`. Pickles as its configuration.
    """

    def __init__(
        self, config: AdminConfig | Mapping[str, Any] | None = None, /, **options: Unpack[AdminOptions]
    ) -> None:
        self.config = AdminConfig.of(config, options)
        self._client = AsyncClient(self.config, self.config.default_api_timeout_ms / 1000)

    def __reduce__(self) -> tuple[type[AsyncAdmin], tuple[AdminConfig]]:
        return AsyncAdmin, (self.config,)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Idempotent; a call after it raises ClientClosed."""
        await self._client.close()

    async def aclose(self) -> None:
        """`close`, by the name that `contextlib.aclosing` calls."""
        await self.close()

    def _timeout_ms(self, timeout: float | None) -> int:
        """What the broker is told: what it takes longer than a request may take, nobody hears of, and it would be asked again."""
        check_timeout(timeout)
        wanted = self.config.default_api_timeout_ms if timeout is None else int(min(timeout * 1000, 2**31 - 1))
        return max(1, min(wanted, self.config.request_timeout_ms * 9 // 10))

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str | None] | None = None,
        replica_assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> CreatedTopic:
        """Create one topic; raises its error (TopicAlreadyExists, InvalidPartitions, ...). See `NewTopic`."""
        topic = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            replica_assignments=replica_assignments,
        )
        outcomes = await self.create_topics([topic], validate_only=validate_only, timeout=timeout)
        return outcomes[name].result()

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> Outcomes[str, CreatedTopic]:
        """Create topics; an outcome for each. With `validate_only` everything is checked and nothing written."""
        operation = core.create_topics(topics, validate_only=validate_only, timeout_ms=self._timeout_ms(timeout))
        return await self._client.run(operation, timeout)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete one topic with its records; raises its error (UnknownTopicOrPartition, ...)."""
        outcomes = await self.delete_topics([name], timeout=timeout)
        outcomes[name].result()

    async def delete_topics(self, names: Sequence[str], *, timeout: float | None = None) -> Outcomes[str, None]:
        """Delete topics with their records; an outcome for each."""
        operation = core.delete_topics(names_of(names), timeout_ms=self._timeout_ms(timeout))
        return await self._client.run(operation, timeout)

    async def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> dict[str, TopicListing]:
        """All topics by name, in order; those of Kafka's own only with `include_internal`."""
        return await self._client.run(core.list_topics(include_internal=include_internal), timeout)

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """One topic with its partitions; raises UnknownTopicOrPartition. Never creates it."""
        outcomes = await self.describe_topics([name], timeout=timeout)
        return outcomes[name].result()

    async def describe_topics(
        self, names: Sequence[str], *, timeout: float | None = None
    ) -> Outcomes[str, TopicDescription]:
        """Topics with their partitions; an outcome for each. Never creates one."""
        return await self._client.run(descriptions.describe_topics(names_of(names)), timeout)

    async def create_partitions(
        self,
        totals: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Raise the number of partitions of topics to the totals given; it cannot be lowered (InvalidPartitions)."""
        operation = core.create_partitions(totals, validate_only=validate_only, timeout_ms=self._timeout_ms(timeout))
        return await self._client.run(operation, timeout)

    async def describe_configs(
        self,
        resources: Sequence[ConfigResource],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, dict[str, ConfigEntry]]:
        """All settings of topics and brokers, by name."""
        operation = resource_configs.describe_configs(
            resources, include_synonyms=include_synonyms, include_documentation=include_documentation
        )
        return await self._client.run(operation, timeout)

    async def list_config_resources(
        self, types: Sequence[ResourceType] = (), *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """What has, or may have, settings: of some types, or of all (KIP-1142). UnsupportedVersion before Kafka 4.1."""
        return await self._client.run(resource_configs.list_config_resources(types), timeout)

    async def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[tuple[AlterConfigOp, str, str | None]]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, None]:
        """Change settings: (operation, name, value) for each; others stay as they are (KIP-339)."""
        operation = resource_configs.incremental_alter_configs(changes, validate_only=validate_only)
        return await self._client.run(operation, timeout)

    async def set_configs(
        self,
        resource: ConfigResource,
        values: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set settings of one resource; None takes a setting back to its default. Raises InvalidConfig, ..."""
        outcomes = await self.incremental_alter_configs(
            {resource_of(resource): operations_of(values)}, validate_only=validate_only, timeout=timeout
        )
        outcomes[resource].result()

    async def set_config(
        self, resource: ConfigResource, name: str, value: str | None, *, timeout: float | None = None
    ) -> None:
        """Set one setting; None takes it back to its default."""
        await self.set_configs(resource, {name: value}, timeout=timeout)

    async def alter_configs(
        self,
        configs: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, None]:
        """Replace all settings of each resource: what is not given goes back to its default. See `set_configs`."""
        return await self._client.run(resource_configs.alter_configs(configs, validate_only=validate_only), timeout)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, int]:
        """Delete the records before an offset (-1: all up to the high watermark); gives the new first offsets."""
        operation = core.delete_records(offsets, timeout_ms=self._timeout_ms(timeout))
        return await self._client.run(operation, timeout)

    async def list_offsets(
        self,
        times: Mapping[TopicPartition, OffsetSpec | int],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, OffsetResult]:
        """The first offset at or after a time (milliseconds since the epoch), or one of `OffsetSpec`.

        Raises UnsupportedVersion, in the outcome, for a special time that the broker is too old for.
        """
        operation = list_offsets(times, read_committed=read_committed, timeout_ms=self._timeout_ms(timeout))
        return await self._client.run(operation, timeout)

    async def describe_cluster(
        self, *, include_fenced: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """The cluster's id, brokers and controller; with `include_fenced` the brokers that are not let in too (KIP-1073, Kafka 4.0)."""
        operation = descriptions.describe_cluster_with_fenced() if include_fenced else core.describe_cluster()
        return await self._client.run(operation, timeout)

    async def describe_log_dirs(
        self,
        broker_ids: Iterable[int] | None = None,
        *,
        topics: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> Outcomes[int, tuple[LogDirDescription, ...]]:
        """The log directories of brokers (None: all) and what is in them, for some topics (None: all)."""
        return await self._client.run(core.describe_log_dirs(broker_ids, topics), timeout)

    async def api_versions(self, node_id: int | None = None, *, timeout: float | None = None) -> dict[str, ApiVersion]:
        """The versions that a broker supports (None: any one), by Kafka's name of the API."""
        return await self._client.run(core.api_versions(node_id), timeout)
