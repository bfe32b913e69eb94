"""The `strategy` section: how gradients become parameters."""

from typing import Annotated

from pydantic import Field

from .asynchronous import Asynchronous
from .downpour import Downpour
from .elastic import Elastic
from .sandblaster import Sandblaster
from .synchronous import SyncSgd

Strategy = Annotated[Downpour | Sandblaster | Asynchronous | Elastic | SyncSgd, Field(discriminator="name")]
