"""The fleet file: groups of equal machines, their links, failures and prices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from dbelief.job.document import quantities, yaml_document
from dbelief.job.document.section import NonNegative, Section, Several, Share, Words, refusal
from dbelief.job.load import checked, text_of

MOST_WORKERS = 100_000
MOST_MACHINES = 100_000


def _quantity(parse: Callable[[str], float]) -> BeforeValidator:
    """A number, or a text with a unit."""

    def parsed(value: object) -> object:
        if not isinstance(value, str):
            return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        try:
            return parse(value)
        except ValueError as error:
            raise PydanticCustomError("quantity", "{sentence}", {"sentence": str(error)}) from None

    return BeforeValidator(parsed)


Time = Annotated[float, _quantity(quantities.seconds), Field(ge=0), Words("a time such as 5ms, 0.2s, 2min or 6h")]
Life = Annotated[float, _quantity(quantities.seconds), Field(gt=0), Words("a time such as 10min, 6h or 7d")]
Rate = Annotated[float, _quantity(quantities.bytes_per_s), Field(gt=0), Words("a rate such as 50Mbit or 1Gbit")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Slow(Section):
    """Machines of a group that are slower than the others."""

    share: Share = Field(description="Of the group's machines, 0 to 1")
    factor: Annotated[float, Field(ge=1)] = Field(description="How many times longer they take for a mini-batch")


class MachineGroup(Section):
    """Equal machines."""

    name: Name = Field(description="Of the group")
    machines: Annotated[int, Field(ge=1, le=MOST_MACHINES)] = Field(default=1, description="How many")
    workers: Annotated[int, Field(ge=0, le=1024)] = Field(default=1, description="Workers on each")
    shards: Annotated[int, Field(ge=0, le=256)] = Field(default=0, description="Shards on each, followers included")
    coordinator: bool = Field(default=False, description="Whether the coordinator is on its first machine")
    processors: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Of each, that the job may use; null: one for every process"
    )
    speed: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Of its processors, as a multiple of those on which the costs were measured"
    )
    together: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="Speed of a processor while another is in use, as a share of that alone: of a core's threads, less",
    )
    host: Name | None = Field(
        default=None, description="Machine whose processors several groups share, as in network namespaces; null: none"
    )
    step: Life | None = Field(default=None, description="Of one mini-batch, computing and data, alone on a processor")
    busy: Share = Field(
        default=1.0, description="Share of that time in which it uses a processor; of a GPU's it is less"
    )
    spread: NonNegative = Field(default=0.1, description="Standard deviation over mean, of one machine's mini-batches")
    across: NonNegative = Field(default=0.0, description="Standard deviation over mean, of the machines' means")
    slow: Slow | None = Field(default=None, description="Slower machines: share, factor; null for none")
    link: Rate | None = Field(default=None, description="Of each machine, in each direction; null: no limit")
    latency: Time = Field(default=0.0, description="Of a message from a machine to the network's middle, one way")
    loss: Annotated[float, Field(ge=0, lt=0.5)] = Field(default=0.0, description="Share of packets that are lost")
    life: Life | None = Field(default=None, description="Mean time until a machine fails; null: never")
    returns: Time = Field(default=60.0, description="Until it, or another in its place, starts its processes again")
    price: NonNegative = Field(default=0.0, description="Of one machine for one hour, in any currency")

    @model_validator(mode="after")
    def _times_itself(self) -> Self:
        if self.workers and self.step is None:
            raise refusal("step", "must be given where there are workers, such as 200ms")
        return self

    @property
    def crosses(self) -> float:
        """Bytes a second that a TCP stream gets on its link: less where packets are lost (Mathis et al. 1997)."""
        rate = math.inf if self.link is None else self.link
        if self.loss and self.latency:
            rate = min(rate, _SEGMENT / (2 * self.latency) * math.sqrt(1.5 / self.loss))
        return rate


_SEGMENT = 1448
"""Bytes of a TCP segment in an Ethernet frame."""


class Fleet(Section):
    """All machines of a job."""

    groups: Several[MachineGroup] = Field(description="Of equal machines")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [group.name for group in self.groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refusal("groups", f"has {twice!r} twice: each group has a name of its own")
        if sum(group.coordinator for group in self.groups) > 1:
            raise refusal("groups", "has more than one with a coordinator")
        if not self.workers:
            raise refusal("groups", "has no workers")
        if self.workers > MOST_WORKERS or sum(group.machines for group in self.groups) > MOST_MACHINES:
            raise refusal("groups", f"has more than {MOST_WORKERS:,} workers or machines")
        if not self.shards:
            raise refusal("groups", "has no shards: say `shards: 1` in the group on whose machines they are")
        return self

    @property
    def workers(self) -> int:
        """Number of workers."""
        return sum(group.machines * group.workers for group in self.groups)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return sum(group.machines * group.shards for group in self.groups)

    @property
    def price(self) -> float:
        """Of all machines for one hour."""
        return sum(group.machines * group.price for group in self.groups)

    @property
    def leader(self) -> MachineGroup:
        """The group with the coordinator: the first one with shards where none is named."""
        named = [group for group in self.groups if group.coordinator]
        return (named or [group for group in self.groups if group.shards])[0]


def load_fleet(path: Path) -> Fleet:
    """Read and check a fleet file.

    Raises
    ------
    JobError
        See `dbelief.job.load_job`.
    """
    return checked(yaml_document.read(text_of(path), str(path)), path.absolute().parent, str(path), Fleet)
