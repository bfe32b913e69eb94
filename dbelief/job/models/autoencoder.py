"""The `model` section's sparse autoencoders (Coates et al. 2013): what Eq. 1 leaves open, for one layer or stacks."""

from abc import ABC
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dbelief.job.document.section import Count, NonNegative, PathOrUrl, Positive, Section, Words, refusal

from .layers import Lcn

Image = Annotated[
    tuple[Count, ...],
    Field(strict=False, min_length=3, max_length=3),
    Words("a list of three whole numbers above 0: height, width, channels"),
]


class Filters(Section, ABC):
    """A layer and its objective, in pixels of the images it sees; the defaults are the paper's first layer."""

    window: Count = Field(default=20, description="Side of a neuron's receptive field, pixels; a multiple of block")
    block: Count = Field(
        default=4, description="Side of a block of neurons that see the same, and the step to the next block, pixels"
    )
    maps: Count = Field(default=8, description="Neurons at each place of a block")
    pool: Count = Field(default=5, description="Side of a pooling window, a number of neurons of one map")
    sparsity: NonNegative = Field(default=0.1, description="Weight of the pooled activations in the loss: lambda")
    eps: Positive = Field(default=1e-3, description="What stands under a pooled activation's root beside the squares")

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        if self.window % self.block:
            raise refusal("window", f"must be a multiple of block, {self.block}, not {self.window}")
        return self

    @property
    def eq1(self) -> dict[str, Any]:
        """The objective's fields by name."""
        return {name: getattr(self, name) for name in Filters.model_fields}


class Autoencoder(Filters):
    """One layer."""

    image: Image | None = Field(
        default=None, description="Height, width and channels of samples that are stored as rows; null: as stored"
    )


class AutoencoderModel(Section):
    """A sparse autoencoder with local receptive fields; the data's targets are not looked at."""

    autoencoder: Autoencoder = Field(description="The layer: window, block, maps, pool, sparsity, eps, image")


class StackFields(Filters):
    """One stack: filters, pooling, local contrast normalisation."""

    contrast: Lcn = Field(default_factory=Lcn, description="Local contrast normalisation: size, sigma, c0")


class StacksModel(Section):
    """Sparse autoencoders one on the other, trained one at a time or all at once; targets are not looked at."""

    stacks: Annotated[tuple[StackFields, ...], Field(strict=False)] = Field(
        description="From the lowest to the highest, two or more: window, block, maps, pool, sparsity, eps, contrast",
        json_schema_extra={"minItems": 2},
    )
    train: Count | Literal["all"] | None = Field(
        default=None,
        description="The stack that is trained on what those below it give, from 1; all: every one, by the sum of "
        "their losses; null: the last",
    )
    trained: Annotated[tuple[PathOrUrl, ...], Field(strict=False)] = Field(
        default=(),
        description="Folders of runs, or .safetensors files, that hold the stacks below, and what training begins with "
        "for those that are trained; of a stack in several files the last counts",
    )
    image: Image | None = Field(
        default=None, description="Height, width and channels of samples that are stored as rows; null: as stored"
    )

    @model_validator(mode="after")
    def _there_are_such(self) -> Self:
        if len(self.stacks) < 2:
            raise refusal("stacks", "must be a list with at least two items; one layer is model.autoencoder")
        if isinstance(self.train, int) and self.train > len(self.stacks):
            raise refusal("train", f"must be a stack from 1 to {len(self.stacks)}, or all, not {self.train}")
        return self

    @property
    def only(self) -> int | None:
        """The stack that is trained, from 1; None where all are."""
        if self.train == "all":
            return None
        return len(self.stacks) if self.train is None else self.train
