"""The `strategy` section: how gradients become parameters."""

from typing import Annotated

from pydantic import Field

from .asynchronous import Asynchronous
from .diloco import Diloco
from .downpour import Downpour
from .elastic import Elastic
from .sandblaster import Sandblaster
from .synchronous import SyncSgd

Strategy = Annotated[Downpour | Sandblaster | Asynchronous | Elastic | SyncSgd | Diloco, Field(discriminator="name")]
