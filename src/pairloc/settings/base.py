"""The base of all settings, and the types that several groups share."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NO_EFFECT = "has no effect on the result"  # marks a field that cache keys ignore
Seed = Annotated[
    int, Field(ge=0, lt=2**62, description="Random seed; the same seed gives the same result on the same machine.")
]
Workers = Annotated[int, Field(ge=0, le=256, description="Number of processes that load images in advance."), NO_EFFECT]
Fraction = Annotated[float, Field(ge=0, le=1)]
Iou = Annotated[float, Field(gt=0, lt=1)]
Device = Literal["auto", "cpu", "cuda", "mps"]


class Settings(BaseModel):
    """Base class of all settings: immutable; unknown keys, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def cache_key(self) -> dict[str, Any]:
        """Return the cache key of a result: all settings except those that do not affect it."""
        key: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            if NO_EFFECT not in field.metadata:
                value = getattr(self, name)
                if isinstance(value, Path):
                    value = value.name
                key[name] = value.cache_key() if isinstance(value, Settings) else value
        return key
