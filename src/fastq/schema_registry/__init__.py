"""Serializers and deserializers whose schemas are in a registry: Avro, Protobuf, JSON Schema (extra `schemas`).

    registry = SchemaRegistryClient("http://localhost:8081")
    producer = Producer(value_serializer=AvroSerializer(registry, schema))
    consumer = Consumer("orders", value_deserializer=AvroDeserializer(registry))

In an event loop, where nothing may block, AsyncProducer and AsyncConsumer load schemas that are new in a thread, and the record
waits for its schema; with the bytes of a `poll_batch`, `await deserializer.deserialize_async(topic, headers, value)`.

Rules: compatible with Confluent's registry and serializers, byte for byte. A name's module, and the library of its format, is
imported when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.lazy import lazy_names

if TYPE_CHECKING:
    from fastq.schema_registry.avro import AvroDeserializer as AvroDeserializer
    from fastq.schema_registry.avro import AvroSerializer as AvroSerializer
    from fastq.schema_registry.client import RegisteredSchema as RegisteredSchema
    from fastq.schema_registry.client import Schema as Schema
    from fastq.schema_registry.client import SchemaReference as SchemaReference
    from fastq.schema_registry.client import SchemaRegistryClient as SchemaRegistryClient
    from fastq.schema_registry.json_schema import JsonSchemaDeserializer as JsonSchemaDeserializer
    from fastq.schema_registry.json_schema import JsonSchemaSerializer as JsonSchemaSerializer
    from fastq.schema_registry.protobuf import ProtobufDeserializer as ProtobufDeserializer
    from fastq.schema_registry.protobuf import ProtobufSerializer as ProtobufSerializer
    from fastq.schema_registry.serde import record_name as record_name
    from fastq.schema_registry.serde import topic_name as topic_name
    from fastq.schema_registry.serde import topic_record_name as topic_record_name

_WHERE = {
    "AvroDeserializer": "fastq.schema_registry.avro",
    "AvroSerializer": "fastq.schema_registry.avro",
    "JsonSchemaDeserializer": "fastq.schema_registry.json_schema",
    "JsonSchemaSerializer": "fastq.schema_registry.json_schema",
    "ProtobufDeserializer": "fastq.schema_registry.protobuf",
    "ProtobufSerializer": "fastq.schema_registry.protobuf",
    "RegisteredSchema": "fastq.schema_registry.client",
    "Schema": "fastq.schema_registry.client",
    "SchemaReference": "fastq.schema_registry.client",
    "SchemaRegistryClient": "fastq.schema_registry.client",
    "record_name": "fastq.schema_registry.serde",
    "topic_name": "fastq.schema_registry.serde",
    "topic_record_name": "fastq.schema_registry.serde",
}

if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
