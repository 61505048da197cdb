"""What all parts of a scenario are: immutable models that refuse a field that they do not have."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from simulator.quantities import nearest


class FieldRefused(ValueError):
    """A field is wrong; `path` leads to it from where the error is raised."""

    def __init__(self, message: str, path: tuple[str | int, ...]) -> None:
        super().__init__(message)
        self.path = path


class Model(BaseModel):
    """A part of a scenario. Its fields are written by their aliases, where they have one."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _fields_are_known(cls, value: Any) -> Any:
        if isinstance(value, dict):
            written = [field.alias or name for name, field in cls.model_fields.items()]
            for name in value:
                if name not in written and name not in cls.model_fields:
                    raise FieldRefused(f"is no field here{nearest(str(name), written)}", (name,))
        return value
