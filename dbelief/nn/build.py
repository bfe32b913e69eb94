"""From a description to a model: a list of layers, an autoencoder, or a name in a user's Python file."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from dbelief.arrays.backend import Backend
from dbelief.errors import ModelError

from .autoencoders.autoencoder import Eq1, SparseAutoencoder
from .layers.convolution import Conv
from .layers.cross import Cross
from .layers.dropout import Dropout
from .layers.embedding import Embedding
from .layers.image import Image
from .layers.layer import Dense, Layer, ReLU, Shape, Sigmoid, Tanh
from .layers.lcn import Lcn
from .layers.local import Local
from .layers.pooling import AveragePool, L2Pool, MaxPool
from .layers.table_bag import FactorizationMachine, TableBag, TableLayer
from .losses import Logistic, Loss, OneVsAll, SoftmaxCrossEntropy, SquareLoss
from .model import Model
from .network import Network
from .python_file import load_object, raised, unknown

LAYERS: Mapping[str, Callable[..., Layer]] = {
    kind.kind: kind
    for kind in (
        *(Dense, ReLU, Sigmoid, Tanh, Embedding, Image, Conv, Local, MaxPool, AveragePool, L2Pool, Lcn, Dropout),
        Cross,
    )
}
LOSSES: Mapping[str, Callable[[], Loss]] = {
    loss.name: loss for loss in (SoftmaxCrossEntropy, OneVsAll, Logistic, SquareLoss)
}
# What a model in a user's file must have, as its author would write it.
METHODS = {"parameters": "parameters(rng)", "loss_and_gradient": "loss_and_gradient(views, batch, out)"}


def build_network(
    layers: Sequence[tuple[str, Mapping[str, Any]]],
    loss: str,
    *,
    features: int | Shape,
    outputs: int | None,
    backend: Backend,
    seed: int = 0,
    names: Sequence[str] = (),
    tables: Mapping[str, int] | None = None,
    columns: Sequence[str] = (),
) -> Network:
    """Build a network from plain words.

    Parameters
    ----------
    layers : sequence of (kind, options)
        For example [("dense", {"units": 64}), ("relu", {}), ("dense", {"units": 10})].
    loss : str
        "softmax_cross_entropy", "one_vs_all", "logistic" or "square".
    features : int or tuple of int
        Shape of a sample's inputs, as `Network` reads it.
    outputs : int or None
        Numbers the last layer must give: the classes, or the width of a target; None: not known, any number.
    backend : Backend
    seed : int
        Of dropout's masks.
    names : sequence of str
        Names of the classes, for an error message.
    tables : mapping of str to int, optional
        Numbers of a row, by name of the table.
    columns : sequence of str
        Columns of the samples' bags of keys.

    Raises
    ------
    ModelError
        A kind, an option, a loss or a size is wrong; the message names the layer by its place, from 1.
    """
    if loss not in LOSSES:
        raise ModelError(f"loss: {unknown(loss, LOSSES)}")
    built = [
        _build_table_layer(f"layer {place} ({kind})", kind, options, tables or {}, columns)
        if kind in _TABLE_LAYERS
        else build_layer(place, kind, options)
        for place, (kind, options) in enumerate(layers, start=1)
    ]
    classes = outputs if loss != SquareLoss.name else None
    network = Network(built, LOSSES[loss](), features, classes, backend, seed, names)
    if classes is None and outputs is not None and network.outputs != outputs:
        raise ModelError(f"the last layer has {network.outputs} outputs, the data's targets have {outputs}")
    return network


def build_autoencoder(
    eq1: Mapping[str, Any], *, features: tuple[int, ...], image: tuple[int, ...] | None, backend: Backend
) -> SparseAutoencoder:
    """Build a sparse autoencoder from plain words.

    Parameters
    ----------
    eq1 : mapping
        The fields of `Eq1` by name.
    features : tuple of int
        Shape of a sample: (height, width), or (height, width, channels), where `image` does not say it.
    image : (height, width, channels), or None

    Raises
    ------
    ModelError
        Samples are no images, or the layer does not fit them.
    """
    return SparseAutoencoder(image_of("autoencoder", features, image), Eq1(**eq1), backend)


def image_of(model: str, features: tuple[int, ...], image: tuple[int, ...] | None) -> tuple[int, int, int]:
    """Height, width and channels of a sample: as the job says (`image`), or as it is stored.

    Raises
    ------
    ModelError
        Names the kind of model; samples are no images, or of another size.
    """
    shape = (*features, 1) if len(features) == 2 else features
    if image is not None:
        if math.prod(image) != math.prod(features):
            raise ModelError(f"{model}: image is {list(image)}, samples hold {math.prod(features)} numbers")
        shape = image
    if len(shape) != 3:
        raise ModelError(f"{model}: samples have shape {features}, not (height, width, channels): give image")
    height, width, channels = shape
    return height, width, channels


def build_layer(place: int, kind: str, options: Mapping[str, Any]) -> Layer:
    """Build one layer from plain words; `place`, from 1, is for messages.

    Raises
    ------
    ModelError
        The kind or an option is wrong.
    """
    where = f"layer {place}"
    if kind not in LAYERS:
        raise ModelError(f"{where}: {unknown(kind, [*LAYERS, *_TABLE_LAYERS])}")
    made = LAYERS[kind]
    takes: dict[str, Field[Any]] = {field.name: field for field in fields(made)} if is_dataclass(made) else {}
    for option in options:
        if option not in takes:
            raise ModelError(f"{where} ({kind}): {unknown(option, takes)}")
    for option, field in takes.items():
        value = options.get(option, None if field.default is MISSING else field.default)
        wrong = _wrong_kind(value, field.type, least=0 if field.default == 0 else 1)
        if wrong:
            raise ModelError(f"{where} ({kind}): {option} is {value!r}, must be {wrong}")
    try:
        layer: Layer = made(**options)
    except ValueError as error:
        raise ModelError(f"{where} ({kind}): {error}") from error
    return layer


_TABLE_LAYERS = (TableBag.kind, FactorizationMachine.kind)


def _build_table_layer(
    where: str, kind: str, options: Mapping[str, Any], tables: Mapping[str, int], columns: Sequence[str]
) -> TableLayer:
    """Build a layer that reads tables; without columns in its options it reads all.

    Raises
    ------
    ModelError
        A table or a column does not exist, or a row of the linear table has more than one number.
    """
    asked = tuple(options.get("columns") or columns)
    for column in asked:
        if column not in columns:
            raise ModelError(f"{where}: {unknown(column, columns)}")
    for name in ("table", "factors", "linear"):
        if name in options and options[name] not in tables:
            raise ModelError(f"{where}: {name}: {unknown(options[name], tables)}")
    if kind == TableBag.kind:
        table = options["table"]
        return TableBag(table, tables[table], asked, options["mode"], options["join"])
    factors, linear = options["factors"], options["linear"]
    if tables[linear] != 1:
        raise ModelError(f"{where}: rows of table {linear!r} have {tables[linear]} numbers, and a linear term has 1")
    return FactorizationMachine(factors, linear, tables[factors], asked, options["join"])


def _wrong_kind(value: Any, wanted: Any, least: int) -> str:
    """What an option must be, if it is something else; "" if it is that."""
    if wanted is float:
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    if wanted is bool:
        return "" if isinstance(value, bool) else "true or false"
    if value is None and wanted is not int:
        return ""
    right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return "" if right else f"an integer of {least} or more"


def load_python_model(path: Path, name: str) -> tuple[Model, str]:
    """Load a model from a user's Python file.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        An object in it with `parameters` and `loss_and_gradient`; or a class or function that gives one when
        called without arguments.

    Returns
    -------
    model : Model
    sha256 : str
        See `load_object`.

    Raises
    ------
    ModelError
        See `load_object`; or the model lacks a method.
    """
    found, sha256 = load_object(path, name)
    return _model(path, name, found), sha256


def _model(path: Path, name: str, found: Any) -> Model:
    """Make a model of what the name stands for, and check its methods."""
    finished = not isinstance(found, type) and all(hasattr(found, method) for method in METHODS)
    if callable(found) and not finished:
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise raised(path, f"{name}()", error) from error
    for method, signature in METHODS.items():
        if not callable(getattr(found, method, None)):
            raise ModelError(f"{path}: {name!r} ({type(found).__name__}) has no method {signature}")
    model: Model = found
    return model
