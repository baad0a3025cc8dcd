"""JSON values whose schema is in a registry, on jsonschema.

Rules: a value is checked against the schema when it is written and, unless told otherwise, when it is read; a message names
the place in the value. References are resolved by name from the registry and from nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fastq.schema_registry import wire
from fastq.schema_registry.client import Schema, SchemaReference, SchemaRegistryClient, check_registry
from fastq.schema_registry.serde import (
    SchemaDeserializer,
    SchemaSerializer,
    SubjectNameStrategy,
    convert,
    missing,
    referenced,
    topic_name,
)

try:
    import jsonschema  # type: ignore[import-untyped, unused-ignore]
    import jsonschema.validators  # type: ignore[import-untyped, unused-ignore]
    import referencing
    import referencing.jsonschema
except ImportError as error:  # the extra is not installed
    raise missing("jsonschema", error) from error


def _validator(registry: SchemaRegistryClient, schema: Schema) -> Any:
    """A validator of a schema and of those that it builds on. Raises ValueError for a schema that is none."""
    content, others = _content(schema), referenced(registry, schema)
    try:
        resources = [
            (
                name,
                referencing.Resource.from_contents(
                    json.loads(other.text), default_specification=referencing.jsonschema.DRAFT7
                ),
            )
            for name, other in others.items()
        ]
        chosen = jsonschema.validators.validator_for(content, default=jsonschema.Draft7Validator)
        chosen.check_schema(content)
    except jsonschema.exceptions.SchemaError as error:
        raise ValueError(f"the JSON schema cannot be used: {error.message} at {error.json_path}") from None
    except Exception as error:
        # jsonschema takes for granted that names are texts, which it looks at before it checks that.
        raise ValueError(f"the JSON schema cannot be used: {type(error).__name__} {error}") from error
    return chosen(content, registry=referencing.Registry().with_resources(resources))


def _content(schema: Schema) -> Any:
    """An object, or one of the two schemas that are a word: true and false. Raises ValueError."""
    try:
        content = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the JSON schema is no JSON: {error}: {schema.text[:60]!r}") from None
    if not isinstance(content, dict | bool):
        raise ValueError(f"a JSON schema is an object, not {schema.text[:60]!r}")
    return content


def _title(schema: Schema) -> Any:
    content = _content(schema)
    return content.get("title") if isinstance(content, dict) else None


def _check(validator: Any, value: Any) -> None:
    problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
    if problem is not None:
        raise ValueError(f"the value does not fit its schema at {problem.json_path}: {problem.message}")


def _schema_of(schema: str | Mapping[str, Any] | Schema) -> Schema:
    if isinstance(schema, Schema):
        return schema
    return Schema(schema if isinstance(schema, str) else json.dumps(schema), "JSON")


class JsonSchemaSerializer(SchemaSerializer[Any]):
    """Values as JSON that fits a schema: `Producer(value_serializer=JsonSchemaSerializer(registry, schema))`.

    schema: JSON text, what json.loads makes of it, or a Schema; None with use_latest_version. to_dict: from the program's
    objects to what json.dumps takes. validate: check each value, with ValueError for one that does not fit.
    """

    schema_type = "JSON"

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | Mapping[str, Any] | Schema | None = None,
        *,
        to_dict: Callable[[Any], Any] | None = None,
        validate: bool = True,
        references: tuple[SchemaReference, ...] = (),
        is_key: bool = False,
        subject_name_strategy: SubjectNameStrategy = topic_name,
        auto_register: bool = True,
        use_latest_version: bool = False,
        normalize: bool = False,
    ) -> None:
        check_registry(registry)
        if schema is None and not use_latest_version:
            raise ValueError("JsonSchemaSerializer needs a schema, or use_latest_version=True")
        given = None if schema is None else _schema_of(schema)
        if given is not None and references:
            given = given._replace(references=tuple(references))
        super().__init__(
            registry,
            given,
            record_name=None if given is None else _title(given),
            is_key=is_key,
            subject_name_strategy=subject_name_strategy,
            auto_register=auto_register,
            use_latest_version=use_latest_version,
            normalize=normalize,
        )
        self._to_dict, self._validate = to_dict, validate
        self._own = None if given is None or given.references else _validator(registry, given)

    def serialize(self, topic: str, value: Any) -> bytes:
        """The frame of one value. ValueError for NaN and infinities, which no schema refuses and JSON does not have."""
        header, validator = self._writing(topic)
        value = convert(self._to_dict, value)
        if validator is not None and self._validate:
            _check(validator, value)
        return header + json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    def _prepare(self, schema: Schema) -> Any:
        return _validator(self.registry, schema) if self._validate else None


class JsonSchemaDeserializer(SchemaDeserializer[Any]):
    """JSON values with a schema: `Consumer(value_deserializer=JsonSchemaDeserializer(registry))`.

    schema: check against this one in place of the one each value was written with. validate: check at all; without it the
    registry is asked nothing. from_dict: from what json.loads gives to the program's objects.
    """

    schema_type = "JSON"

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | Mapping[str, Any] | Schema | None = None,
        *,
        from_dict: Callable[[Any], Any] | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__(registry)
        self._from_dict, self._validate = from_dict, validate
        self._given = None if schema is None else _schema_of(schema)
        self._reader = None if self._given is None or self._given.references else _validator(registry, self._given)

    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        """The value in one frame. Raises DeserializationError, SchemaRegistryError, ValueError of one that does not fit."""
        schema_id, payload = wire.split(data)
        validator = None
        if self._validate:
            self._prepare_reader()
            validator = self._reader if self._reader is not None else self._writer(schema_id)
        value = json.loads(bytes(payload))
        if validator is not None:
            _check(validator, value)
        return convert(self._from_dict, value)

    def _prepare_reader(self) -> None:
        if self._reader is None and self._given is not None and self._validate:
            self._reader = _validator(self.registry, self._given)

    def _prepare(self, schema: Schema) -> Any:
        return _validator(self.registry, schema)
