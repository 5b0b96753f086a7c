from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cdc.config import DestinationConfig

Configure: TypeAlias = Callable[..., DestinationConfig]
