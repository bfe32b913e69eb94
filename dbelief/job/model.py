"""The `model` section: layers in a list, or an object in a user's Python file."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, GetJsonSchemaHandler, Tag, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .kinds import LARGEST, Count, Section, Words, not_empty, refusal


class Dense(Section):
    """A fully connected layer."""

    units: Count = Field(description="Outputs of the layer, a number of neurons")


class Pointwise(Section):
    """A layer without options: one function, element by element."""


class Layer(Section):
    """One layer: the one of its fields that is set.

    A job file writes it as a bare name (`relu`), as `{dense: 64}`, or as `{dense: {units: 64}}`.
    A new kind of layer is a new field here.
    """

    dense: Dense | None = Field(default=None, description="Fully connected: units, or a mapping with units")
    relu: Pointwise | None = Field(default=None, description="max(x, 0)")
    sigmoid: Pointwise | None = Field(default=None, description="1 / (1 + exp(-x))")
    tanh: Pointwise | None = Field(default=None, description="tanh(x)")

    @model_validator(mode="before")
    @classmethod
    def _long_form(cls, value: object) -> object:
        if isinstance(value, str):
            return {value: {}}
        if not isinstance(value, dict):
            return value
        long = {kind: {} if options is None else options for kind, options in value.items()}
        dense = long.get("dense", {})
        if not isinstance(dense, dict | Dense):
            long["dense"] = {"units": dense}
        return long

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tell editors of the short forms too."""
        section = handler(core)
        long = handler.resolve_ref_schema(section)
        long |= {"minProperties": 1, "maxProperties": 1}
        dense = long["properties"]["dense"]
        dense["anyOf"] = [dense["anyOf"][0], {"type": "integer", "minimum": 1, "maximum": LARGEST}]
        return {"anyOf": [{"enum": [kind for kind in cls.model_fields if kind != "dense"]}, section]}

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
        if not self.options:
            return self.kind
        return {self.kind: self.options["units"] if self.kind == "dense" else self.options}


_LAYER_WORDS = Words("one of dense with its units, relu, sigmoid, tanh")


class LayersModel(Section):
    """A network of layers and a loss."""

    layers: Annotated[tuple[Annotated[Layer, _LAYER_WORDS], ...], Field(strict=False), AfterValidator(not_empty)] = (
        Field(
            description="Layers from input to output: dense with its units, relu, sigmoid, tanh",
            json_schema_extra={"minItems": 1},
        )
    )
    loss: Literal["softmax_cross_entropy", "square"] = Field(description="Loss of a sample, averaged over a mini-batch")

    def described(self) -> list[tuple[str, dict[str, Any]]]:
        """(kind, options) of each layer, from input to output."""
        return [(layer.kind, layer.options) for layer in self.layers]


class PythonModel(Section):
    """An object in a user's file, with `parameters` and `loss_and_gradient`."""

    python: Annotated[str, Field(pattern=r"^[^\x00]+\.py:[A-Za-z_][A-Za-z0-9_]*$"), Words("file.py:name")] = Field(
        description="file.py:name; the file is relative to the job file's folder"
    )

    @property
    def file(self) -> str:
        """Path of the file as written; see `dbelief.job.resolve`."""
        return self.python.rpartition(":")[0]

    @property
    def object(self) -> str:
        """Name of the object in the file."""
        return self.python.rpartition(":")[2]


def _form(value: object) -> str:
    """Tell which of the two forms is meant."""
    has_python = "python" in value if isinstance(value, dict) else isinstance(value, PythonModel)
    return "python" if has_python else "layers"


Model = Annotated[
    Annotated[LayersModel, Tag("layers")] | Annotated[PythonModel, Tag("python")],
    Discriminator(_form),
    Words("a mapping with layers and loss, or with python"),
]
