"""Settings: typed, frozen, and strict about keys they do not know."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SceneSettings(Settings):
    """Generated scenes; the same settings give the same pictures."""

    seed: Annotated[int, Field(ge=0)] = 0
    size: Annotated[int, Field(ge=32, le=1024)] = 128  # px, pictures are square
    source_images: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    target_images: Annotated[int, Field(ge=1, le=1_000_000)] = 400
