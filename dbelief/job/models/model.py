"""The `model` section: layers in a list, one sparse autoencoder or stacks of them, or an object in a Python file."""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from dbelief.job.document.section import PythonName, Section, Several, Words, refusal
from dbelief.job.zoo import NETWORKS, Loss, Name

from .autoencoder import AutoencoderModel, StacksModel
from .layers import LAYER_WORDS, Layer
from .table_layers import EmbeddingBag, Fm


class LayersModel(Section):
    """A network of layers and a loss."""

    layers: Several[Annotated[Layer, LAYER_WORDS]] = Field(
        description=f"Layers from input to output, each {LAYER_WORDS.text}", json_schema_extra={"minItems": 1}
    )
    loss: Literal["softmax_cross_entropy", "one_vs_all", "logistic", "square"] = Field(
        description="Loss of a sample, averaged over a mini-batch"
    )

    @property
    def table_layers(self) -> dict[str, EmbeddingBag | Fm]:
        """Layers that read tables, by their place in messages."""
        found = [(f"{place}.{layer.kind}", getattr(layer, layer.kind)) for place, layer in enumerate(self.layers)]
        return {f"model.layers.{place}": one for place, one in found if isinstance(one, EmbeddingBag | Fm)}

    def described(self) -> list[tuple[str, dict[str, Any]]]:
        """(kind, options) of each layer, from input to output."""
        return [(layer.kind, layer.options) for layer in self.layers]


def _chain(name: Name) -> Name:
    if NETWORKS[name].chain is None:
        raise refusal(
            "",
            f"{name} can be counted (dbelief plan {name}), not trained: it has branches, and a job's layers have none",
        )
    return name


class ZooModel(Section):
    """A network of the model zoo: its name stands for its layers and their loss."""

    zoo: Annotated[Name, AfterValidator(_chain)] = Field(
        description="Network of the model zoo, one without branches: see dbelief zoo"
    )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """From input to output; the first says the image."""
        return tuple(Layer.model_validate(words) for words in NETWORKS[self.zoo].chain or ())

    @property
    def loss(self) -> Loss:
        """Loss of a sample, averaged over a mini-batch."""
        return NETWORKS[self.zoo].loss

    def described(self) -> list[tuple[str, dict[str, Any]]]:
        """(kind, options) of each layer, from input to output."""
        return [(layer.kind, layer.options) for layer in self.layers]


class PythonModel(Section):
    """An object in a user's file, with `parameters` and `loss_and_gradient`."""

    python: PythonName = Field(description="file.py:name; the file is relative to the job file's folder")

    @property
    def file(self) -> str:
        """Path of the file as written; see `dbelief.job.resolve`."""
        return self.python.rpartition(":")[0]

    @property
    def object(self) -> str:
        """Name of the object in the file."""
        return self.python.rpartition(":")[2]


class ScriptModel(Section):
    """The module of the script that joins the job: see `dbelief.torch`."""

    source: Literal["script"] = Field(description="The script that joins the job brings its module")


def _form(value: object) -> str:
    """Tell which of the forms is meant."""
    fields = value if isinstance(value, dict) else getattr(type(value), "model_fields", {})
    return next((form for form in ("python", "zoo", "autoencoder", "stacks", "source") if form in fields), "layers")


Model = Annotated[
    Annotated[LayersModel, Tag("layers")]
    | Annotated[ZooModel, Tag("zoo")]
    | Annotated[AutoencoderModel, Tag("autoencoder")]
    | Annotated[StacksModel, Tag("stacks")]
    | Annotated[PythonModel, Tag("python")]
    | Annotated[ScriptModel, Tag("source")],
    Discriminator(_form),
    Words("a mapping with layers and loss, with zoo, with autoencoder, with stacks, with python, or source: script"),
]
