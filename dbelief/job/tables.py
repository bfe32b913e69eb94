"""Tables of rows by key, for embeddings of sparse features in scripts and in layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .document import quantities
from .document.section import LARGEST, Count, Decay, NonNegative, Positive, Section, Whole, refusal
from .models.model import LayersModel, Model, ScriptModel
from .strategies.asynchronous import Asynchronous
from .strategies.downpour import Downpour
from .strategies.rules import AdagradRule, AddRule, FtrlRule, SgdRule
from .strategies.strategy import Strategy
from .strategies.synchronous import SyncSgd

_UNIFORM = re.compile(r"uniform\((?P<limit>\d+(\.\d*)?(e-?\d+)?)\)")


class RowAdagradRule(Section):
    """A <- A + mean(g^2) over the row, w <- w - rate * g / (sqrt(A) + eps): one number of state for each row."""

    name: Literal["row-adagrad"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units")
    eps: NonNegative = Field(default=0.0, description="Added to the square root, in gradient units")
    a0: NonNegative = Field(default=0.0, description="Where A starts; gradient units squared")


class LazyAdamRule(Section):
    """Adam of the rows that a push has, as torch's SparseAdam: the others stay as they are, with their moments."""

    name: Literal["lazy-adam"] = Field(description="Which rule this is")
    rate: Positive = Field(description="Learning rate before the schedule; parameter units")
    beta1: Decay = Field(default=0.9, description="Decay of the mean gradient per push, without unit")
    beta2: Decay = Field(default=0.999, description="Decay of the mean square per push, without unit")
    eps: NonNegative = Field(default=1e-8, description="Added to the square root; gradient units")


RowRule = Annotated[SgdRule | AdagradRule | RowAdagradRule | LazyAdamRule | FtrlRule, Field(discriminator="name")]


def _init(text: str) -> str:
    if text != "zeros" and _UNIFORM.fullmatch(text) is None:
        raise refusal("", f"must be zeros or uniform(LIMIT), such as uniform(0.01), not {text!r}")
    return text


def _parsed(parse: Callable[[str], float]) -> Callable[[object], object]:
    """A validator that takes text as `parse` does, and all else as it is."""

    def value(given: object) -> object:
        if not isinstance(given, str):
            return given
        try:
            return parse(given)
        except ValueError as error:
            raise refusal("", str(error)) from None

    return value


Rows = Annotated[Count, BeforeValidator(_parsed(quantities.count))]
"""A whole number, also as text: 50M."""
Age = Annotated[Annotated[float, Field(ge=1, le=LARGEST)], BeforeValidator(_parsed(quantities.seconds))]
"""A time in seconds, also as text: 7d."""


class AdmitSection(Section):
    """Keys that are rare get no row: what they are pushed is dropped until then."""

    after: Annotated[Whole, Field(ge=2, le=255)] = Field(description="Pushes with a key until it gets a row")
    counters: Rows = Field(
        default=1 << 24,
        description="Bytes in which keys without a row are counted, over all shards: the fewer, the more of them get "
        "one early",
    )


class EvictSection(Section):
    """Rows that are removed: their keys read as initial rows again."""

    lru: Rows | None = Field(
        default=None, description="Rows beyond which those are removed whose last push is the longest ago; null: none"
    )
    ttl: Age | None = Field(
        default=None,
        description="Seconds, or such as 7d, without a push after which a row is removed; null: never",
    )

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.lru is None and self.ttl is None:
            raise refusal("", "needs lru or ttl")
        return self


class CacheSection(Section):
    """Rows that a replica keeps once it has pulled them; what it pushes to is pulled again."""

    rows: Annotated[Rows, Field(le=10**7)] = Field(
        description="Rows that a replica keeps, beyond which those are dropped that were read the longest ago"
    )
    age: Annotated[Whole, Field(ge=1, le=10**6)] = Field(
        description="Steps that a row may be read after that in which it was pulled; with a bound on staleness at most "
        "the bound"
    )


class TableSection(Section):
    """Rows by key on the shards: a row is made by the first push with its key."""

    width: Annotated[Whole, Field(ge=1, le=4096)] = Field(description="Numbers of a row")
    rule: RowRule = Field(description="Update rule of its rows, with a learning rate of their own")
    init: Annotated[str, AfterValidator(_init)] = Field(
        default="uniform(0.01)", description="Initial rows: zeros, or uniform(LIMIT), by the job's seed and the key"
    )
    buckets: Annotated[Count, Field(le=4096)] = Field(
        default=32, description="Parts that the table is cut into, which shards hold and hand over"
    )
    keys: Literal["int64", "text"] = Field(
        default="int64", description="What a script gives as keys: whole numbers of 64 bits, or texts, which are hashed"
    )
    admit: AdmitSection | None = Field(default=None, description="When a key gets a row; null: at its first push")
    evict: EvictSection | None = Field(default=None, description="When rows are removed; null: never")
    most_rows: Rows | None = Field(
        default=None, description="Rows beyond which no key gets one; null: as many as its buckets can have"
    )

    push: Literal["fp32", "fp16", "bf16", "int8"] = Field(
        default="fp32",
        description="How its rows' gradients are written in pushes: fp32: as they are; fp16, bf16: in half the bytes; "
        "int8: in a 4th, with a scale a row, rounded by chance; keys are always as they are",
    )
    pull: Literal["fp32", "fp16", "bf16"] | None = Field(
        default=None,
        description="How its rows are written in pulls, rounded in 16 bits to 2^-11 or 2^-8; null: as wire.pull says",
    )
    cache: CacheSection | None = Field(
        default=None, description="Rows that a replica keeps from step to step; null: none"
    )

    @property
    def limit(self) -> float:
        """Initial rows are uniform in [-limit, limit)."""
        found = _UNIFORM.fullmatch(self.init)
        return float(found["limit"]) if found else 0.0


def check_tables(strategy: Strategy, model: Model, start_from: str | None) -> None:
    """Raise a refusal where a job of these sections cannot have tables, with the reason."""
    shards_step = isinstance(strategy, Downpour | Asynchronous | SyncSgd) and not strategy.grouped
    if not shards_step or isinstance(strategy.at_shards, AddRule):
        raise refusal(
            "tables",
            f"needs downpour or sync-sgd with a rule of the shards, not {strategy.name}: where replicas step on their "
            "own, each would need all rows",
        )
    if not isinstance(model, ScriptModel) and not (isinstance(model, LayersModel) and model.table_layers):
        raise refusal(
            "tables",
            "needs model source: script, whose module has dbelief.torch.EmbeddingBag, or layers embedding_bag or fm",
        )
    if not strategy.locked:
        raise refusal("tables", "needs pushes in an order, not strategy.form hogwild: rows are made by them")
    if start_from is not None:
        raise refusal("start_from", "must be null with tables: rows of another run are not taken over")


def check_caches(strategy: Strategy, tables: Mapping[str, TableSection]) -> None:
    """Raise a refusal where rows would be kept for longer than the strategy lets them be."""
    bound = strategy.staleness
    for name, cache in ((name, table.cache) for name, table in tables.items()):
        if cache is None or bound is None:
            continue
        if not bound:
            raise refusal(
                f"tables.{name}.cache",
                "must be null with staleness 0 (sync-sgd): each step changes rows, and the next one is to have them",
            )
        if cache.age > bound:
            raise refusal(
                f"tables.{name}.cache.age",
                f"must be at most strategy.staleness, {bound}, not {cache.age}: the bound is of kept rows too",
            )
