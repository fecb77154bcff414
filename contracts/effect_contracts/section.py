"""The base of every part of a contract document: how strictly it is read, how it is written."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A part of a contract document: strict, frozen, unknown fields refused.

    What is absent stays absent in the canonical form, so that a later version of this package
    may add optional fields without changing the digest of documents that do not use them.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = dump(self)
        for name, field in type(self).model_fields.items():
            if field.is_required():
                continue
            value = getattr(self, name)
            empty = value is None or (isinstance(value, tuple | dict) and not value)
            default = field.get_default(call_default_factory=True, validated_data={})
            if empty and value == default:
                dumped.pop(field.serialization_alias or field.alias or name, None)
        return dumped
