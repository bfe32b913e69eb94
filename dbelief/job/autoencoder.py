"""The `model` section's sparse autoencoder: what Eq. 1 of Coates et al. 2013 leaves open."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from .kinds import Count, NonNegative, Positive, Section, Words, refusal

Image = Annotated[
    tuple[Count, ...],
    Field(strict=False, min_length=3, max_length=3),
    Words("a list of three whole numbers above 0: height, width, channels"),
]


class Autoencoder(Section):
    """The layer, in pixels of the images it sees; the defaults are the paper's first layer."""

    window: Count = Field(default=20, description="Side of a neuron's receptive field, pixels; a multiple of block")
    block: Count = Field(
        default=4, description="Side of a block of neurons that see the same, and the step to the next block, pixels"
    )
    maps: Count = Field(default=8, description="Neurons at each place of a block")
    pool: Count = Field(default=5, description="Side of a pooling window, a number of neurons of one map")
    sparsity: NonNegative = Field(default=0.1, description="Weight of the pooled activations in the loss: lambda")
    eps: Positive = Field(default=1e-3, description="What stands under a pooled activation's root beside the squares")
    image: Image | None = Field(
        default=None, description="Height, width and channels of samples that are stored as rows; null: as stored"
    )

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        if self.window % self.block:
            raise refusal("window", f"must be a multiple of block, {self.block}, not {self.window}")
        return self


class AutoencoderModel(Section):
    """A sparse autoencoder with local receptive fields; the data's targets are not looked at."""

    autoencoder: Autoencoder = Field(description="The layer: window, block, maps, pool, sparsity, eps, image")
