"""Layers of a network, as a job file writes them: one section for each kind's options."""

from typing import Any, ClassVar, Self

from pydantic import Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from dbelief.job.document.section import Count, Decay, Natural, Positive, Section, Words, refusal
from dbelief.job.document.type_names import section_in

from .table_layers import Cross, EmbeddingBag, Fm


class Dense(Section):
    """A fully connected layer."""

    short: ClassVar[str] = "units"

    units: Count = Field(description="Outputs of the layer, a number of neurons")


class Pointwise(Section):
    """A layer without options: one function, element by element."""


class Embedding(Section):
    """A trainable vector for each entry of a table; inputs are whole numbers."""

    entries: Count = Field(description="Rows of the table; inputs are from 0 to one less")
    width: Count = Field(description="Numbers of a vector")


class Image(Section):
    """The same numbers as an image."""

    height: Count = Field(description="Rows of pixels")
    width: Count = Field(description="Pixels in a row")
    channels: Count = Field(default=1, description="Numbers in a pixel, which lie side by side")


class Conv(Section):
    """A convolution, where its kernels lie inside the image and its border."""

    maps: Count = Field(description="Filters, each of which gives a channel")
    kernel: Count = Field(description="Height and width of a filter, in pixels")
    stride: Count = Field(default=1, description="Pixels from one place of a filter to the next")
    padding: Natural = Field(default=0, description="Width of a border of zeros around the image, in pixels")


class Local(Section):
    """A locally connected layer: blocks of neurons that see the same, each neuron with weights of its own."""

    window: Count = Field(description="Height and width of what a block sees, in pixels; a multiple of the stride")
    block: Count = Field(description="Height and width of a block of neurons; 1: no two places see the same")
    maps: Count = Field(description="Neurons at each place of a block, each of which gives a channel")
    stride: Count | None = Field(
        default=None, description="Pixels from one block's window to the next, which divide an image; null: as block"
    )

    @model_validator(mode="after")
    def _whole_strides(self) -> Self:
        stride = self.block if self.stride is None else self.stride
        if self.window % stride:
            raise refusal("window", f"must be a multiple of the stride, {stride}, not {self.window}")
        return self


class Pool(Section):
    """One number for each window of each channel, where the windows lie inside the image."""

    short: ClassVar[str] = "size"

    size: Count = Field(description="Height and width of a window, in pixels")
    stride: Count | None = Field(default=None, description="Pixels from one window to the next; null: as size")


class MaxPool(Pool):
    """The largest number of each window of each channel."""

    padding: Natural = Field(default=0, description="Width of a border around the image, of which nothing is taken")
    ceil_mode: bool = Field(default=False, description="Whether the last windows may hang over the image's far edges")

    @model_validator(mode="after")
    def _windows_see_pixels(self) -> Self:
        if self.padding >= self.size:
            raise refusal("padding", f"must be less than the size, {self.size}, not {self.padding}")
        return self


class L2Pool(Section):
    """The root of the sum of squares, for each window of each channel."""

    short: ClassVar[str] = "size"

    size: Count = Field(description="Height and width of a window, in pixels")
    stride: Count = Field(default=1, description="Pixels from one window to the next")
    eps: Positive = Field(default=1e-8, description="Added below the root, which has no slope at 0")


class Lcn(Section):
    """Local contrast normalisation."""

    size: Count = Field(default=5, description="Height and width of the Gaussian window in pixels, odd")
    sigma: Positive = Field(default=1.25, description="Standard deviation of the Gaussian, in pixels")
    c0: Positive = Field(default=0.01, description="Contrast below which nothing is raised")

    @model_validator(mode="after")
    def _odd(self) -> Self:
        if self.size % 2 == 0:
            raise refusal("size", f"must be odd, not {self.size}: the window has a middle")
        return self


class Dropout(Section):
    """Numbers set to 0 at random while training."""

    short: ClassVar[str] = "share"

    share: Decay = Field(description="Of the numbers that are set to 0; the others are divided by 1 - share")


class Layer(Section):
    """One layer: the one of its fields that is set.

    A job file writes it as a bare name (`relu`) where nothing needs to be said, as `{dense: 64}` where one number says
    it, or as `{dense: {units: 64}}`. A new kind of layer is a new field here.
    """

    dense: Dense | None = Field(default=None, description="Fully connected: units, or a mapping with units")
    relu: Pointwise | None = Field(default=None, description="max(x, 0)")
    sigmoid: Pointwise | None = Field(default=None, description="1 / (1 + exp(-x))")
    tanh: Pointwise | None = Field(default=None, description="tanh(x)")
    embedding: Embedding | None = Field(default=None, description="Vectors looked up by whole numbers; the first layer")
    image: Image | None = Field(default=None, description="Rows of numbers as images, for the layers that take them")
    conv: Conv | None = Field(default=None, description="Convolution of images")
    local: Local | None = Field(default=None, description="Locally connected blocks of neurons, nothing shared")
    max_pool: MaxPool | None = Field(
        default=None, description="The largest of each window: size, or a mapping with size"
    )
    average_pool: Pool | None = Field(default=None, description="The mean of each window: size, or a mapping with size")
    l2_pool: L2Pool | None = Field(
        default=None, description="The root of each window's sum of squares: size, or a mapping with size"
    )
    lcn: Lcn | None = Field(default=None, description="Local contrast normalisation, subtractive then divisive")
    dropout: Dropout | None = Field(default=None, description="Dropout in training: share, or a mapping with share")
    embedding_bag: EmbeddingBag | None = Field(
        default=None, description="Sums of rows of a table of the job: its name, or a mapping with table"
    )
    fm: Fm | None = Field(default=None, description="A factorisation machine, by two tables of the job")
    cross: Cross | None = Field(default=None, description="Cross layers: their number, or a mapping with layers")

    @model_validator(mode="before")
    @classmethod
    def _long_form(cls, value: object) -> object:
        if isinstance(value, str):
            return {value: {}}
        if not isinstance(value, dict):
            return value
        long = {kind: {} if options is None else options for kind, options in value.items()}
        for kind, short in _SHORT.items():
            if kind in long and not isinstance(long[kind], dict | Section):
                long[kind] = {short: long[kind]}
        return long

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tell editors of the short forms too."""
        section = handler(core)
        long = handler.resolve_ref_schema(section)
        long |= {"minProperties": 1, "maxProperties": 1}
        for kind, options in _SECTIONS.items():
            takes = long["properties"][kind]["anyOf"][:1]
            if kind in _SHORT:
                one = options.model_json_schema()["properties"][_SHORT[kind]]
                takes.append({key: one[key] for key in one if key not in ("title", "description")})
            if kind in _BARE:
                takes.append({"type": "null"})
            long["properties"][kind]["anyOf"] = takes
        return {"anyOf": [{"enum": list(_BARE)}, section]}

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise refusal("", f"must name exactly one layer, one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def kind(self) -> str:
        """Name of the layer."""
        (name,) = self.model_fields_set
        return name

    @property
    def options(self) -> dict[str, Any]:
        """Its options by name; empty for a layer that has none."""
        section: Section = getattr(self, self.kind)
        return section.model_dump()

    @model_serializer
    def _short_form(self) -> str | dict[str, Any]:
        options = self.options
        if not options:
            return self.kind
        return {self.kind: options[_SHORT[self.kind]] if list(options) == [_SHORT.get(self.kind)] else options}


_SECTIONS = {kind: section for kind, field in Layer.model_fields.items() if (section := section_in(field)) is not None}
_SHORT: dict[str, str] = {kind: section.short for kind, section in _SECTIONS.items() if hasattr(section, "short")}
_BARE = tuple(
    kind
    for kind, section in _SECTIONS.items()
    if not any(field.is_required() for field in section.model_fields.values())
)
LAYER_WORDS = Words("one of dense with its units, " + ", ".join(kind for kind in _SECTIONS if kind != "dense"))
