"""Settings of a run: frozen dataclasses without defaults. A number's one home is the notebook's parameters cell."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self


class Settings:
    """Base of the settings dataclasses."""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """The settings among a notebook's parameters: `RLOOSettings.of(globals())`.

        Raises ValueError with the names of settings that are no parameters.
        """
        names = [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]
        if missing := [name for name in names if name not in parameters]:
            raise ValueError(f"{cls.__name__}: the parameters cell lacks {', '.join(missing)}")
        return cls(**{name: parameters[name] for name in names})
