"""Modules whose rows lie in a table of the job: forward pulls the rows of a batch, and `sync.step` pushes gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from dbelief.errors import ModelError, UserError
from dbelief.script.job import ScriptJob
from dbelief.script.user_code import located
from dbelief.sparse.given_keys import beyond_int64, given_keys, not_of_kind
from dbelief.sparse.ordered_keys import OrderedKeys, ordered_keys
from dbelief.sparse.row_gradients import RowGradients
from dbelief.sparse.table import SparseTable
from dbelief.sparse.table_reader import TableReader
from dbelief.sparse.tables_read import with_tables

from .bag_sums import bag_sums, bags_of

if TYPE_CHECKING:  # a script that trains does not import what reads sets
    from dbelief.job.tables import TableSection
    from dbelief.sparse.row_cache import RowCache
    from dbelief.sparse.saved.loaded_tables import LoadedTable

Keys: TypeAlias = torch.Tensor | np.ndarray | Sequence[Any]
"""Whole numbers as a tensor, or whole numbers or texts as an array, a list, or a list of lists: one for each bag."""


_MOST_AHEAD = 4
"""Batches whose distinct keys are kept until they are read: a loop pulls the next one ahead, and some pull two."""


class PulledRows(NamedTuple):
    """Rows of one forward pass: (n,) int64 keys, each once, and (n, width) rows, which gather gradients."""

    keys: np.ndarray
    rows: torch.Tensor


class LoadedReader:
    """Reads rows of loaded tables in place of `TableReader`: they are in memory, or mapped."""

    def __init__(self, tables: Mapping[str, LoadedTable]) -> None:
        self._tables = tables
        self.caches: Mapping[str, RowCache] = {}

    def table(self, name: str) -> SparseTable:
        """A table that was loaded."""
        return self._tables[name].table

    def read(self, table: SparseTable, keys: np.ndarray) -> np.ndarray:
        """See `TableReader.read`."""
        return self._tables[table.name].read(keys)

    def prefetch(self, table: SparseTable, keys: np.ndarray) -> None:
        """See `TableReader.prefetch`: the rows are here already."""


class EmbeddingBag(torch.nn.Module):  # type: ignore[misc]
    """Sums or means of the rows of bags of keys, as `torch.nn.EmbeddingBag`; the rows lie on the shards.

    Keys are whole numbers of 64 bits: there is no number of rows. A row is made by the first step with its key, and
    until then is what the table's `init` says. The module has no parameters: the table's rule makes the steps. Of a
    table with `keys: text` keys are texts, and their hashes (`dbelief.sparse.text_keys`) those of its rows.

    Parameters
    ----------
    job : ScriptJob or mapping of name to LoadedTable
        Made by `dbelief.join()`, or to use what was trained by `dbelief.load_tables(run)`: rows are only read then, and
        stay as they are.
    table : str
        Its name in the job file.
    mode : {"sum", "mean"}
        What is made of the rows of a bag.

    Attributes
    ----------
    pulled
        Rows of the forward passes since the last step.

    Raises
    ------
    ModelError
        The job, or the mapping, has no such table.
    """

    def __init__(
        self, job: ScriptJob | Mapping[str, LoadedTable], table: str, mode: Literal["sum", "mean"] = "sum"
    ) -> None:
        super().__init__()
        tables: Mapping[str, TableSection | LoadedTable] = (
            job if isinstance(job, Mapping) else job.membership.job.tables
        )
        with located():
            if table not in tables:
                listed = ", ".join(tables) or "none"
                raise ModelError(f"{type(self).__name__}: there is no table {table!r}; tables: {listed}")
            if mode not in ("sum", "mean"):
                raise ModelError(f"{type(self).__name__}: mode is {mode!r}, must be sum or mean")
        self.table, self.width, self.mode = table, tables[table].width, mode
        self._kind = tables[table].keys
        self._reader: TableReader | LoadedReader | None = LoadedReader(job) if isinstance(job, Mapping) else None
        self.pulled: list[PulledRows] = []
        self._prefetched: deque[tuple[np.ndarray, OrderedKeys]] = deque(maxlen=_MOST_AHEAD)

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} of table {self.table!r}"

    def extra_repr(self) -> str:
        """For `print`."""
        return f"table={self.table!r}, width={self.width}, mode={self.mode!r}"

    def attach(self, reader: TableReader) -> None:
        """Read rows by this reader from now on."""
        self._reader = reader

    @property
    def loaded(self) -> bool:
        """Whether its rows are loaded ones, which are only read."""
        return isinstance(self._reader, LoadedReader)

    def check_table(self, tables: Mapping[str, TableSection]) -> None:
        """Check that its table is among those of the job that it is to train in.

        Raises
        ------
        ModelError
            There is none of this name, or one with other rows: the module was made with another job.
        """
        width = tables[self.table].width if self.table in tables else None
        if width != self.width:
            here = "has none" if width is None else f"has rows of {width}"
            raise ModelError(f"{self._name}: made for rows of {self.width} numbers, and the job of Sync {here}")

    def forward(
        self,
        keys: Keys,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(bags, width) float32, of keys as `torch.nn.EmbeddingBag` takes them: (bags, n), or (n,) with offsets.

        Of a list of lists, which may differ in length, each is a bag. What is given as lists or arrays is on the CPU.
        `per_sample_weights`: of the shape of the keys, of lists (n,), float32: factors of their rows in a sum.
        """
        whole, starts = self._keys(keys)
        with located():
            if starts is not None and offsets is not None:
                raise UserError(f"{self._name}: offsets beside lists of keys, which are bags themselves")
        offsets = starts if offsets is None else offsets
        rows, places = self._rows(whole)
        bags = bags_of(places, offsets, len(rows)) if per_sample_weights is None else None
        if bags is not None:
            return bag_sums(rows, bags, self.mode)
        made: torch.Tensor = functional.embedding_bag(
            places, rows, offsets, mode=self.mode, per_sample_weights=per_sample_weights
        )
        return made

    def _keys(self, given: Keys) -> tuple[torch.Tensor, torch.Tensor | None]:
        """int64 keys, and, of a list of lists, where each of them begins."""
        with located():
            try:
                if isinstance(given, torch.Tensor):
                    return self._whole(given), None
                keys, starts = given_keys(given, self._kind)
            except ValueError as error:
                raise UserError(f"{self._name}: {error}") from None
        return torch.from_numpy(keys), None if starts is None else torch.from_numpy(starts)

    def _whole(self, keys: torch.Tensor) -> torch.Tensor:
        if self._kind == "text" or keys.is_floating_point() or keys.is_complex() or keys.dtype == torch.bool:
            raise not_of_kind(str(keys.dtype), self._kind)
        whole = keys.long()
        if keys.dtype == torch.uint64 and (beyond := whole < 0).any():  # as their bits
            raise beyond_int64(int(whole[beyond][0]) + (1 << 64))
        return whole

    def _rows(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the distinct keys, and of each key which of them is its own."""
        reader = self._attached()
        table = reader.table(self.table)
        own, at = self._distinct(keys, table)
        places = torch.from_numpy(at).to(keys.device).view(keys.shape)
        rows = torch.from_numpy(reader.read(table, own)).to(keys.device)
        if torch.is_grad_enabled() and not self.loaded:
            rows.requires_grad_()
            self.pulled.append(PulledRows(own, rows))
        return rows, places

    def _distinct(self, keys: torch.Tensor, table: SparseTable) -> OrderedKeys:
        """The distinct keys; those of a batch that was pulled ahead were found then."""
        flat = _flat(keys)
        for place, (given, distinct) in enumerate(self._prefetched):
            if np.array_equal(given, flat):
                del self._prefetched[place]
                return distinct
        return ordered_keys(flat, table)

    def _attached(self) -> TableReader | LoadedReader:
        with located():
            if self._reader is None:
                raise UserError(f"{self._name}: make Sync(job, module, optimizer) of the module that it is in first")
        return self._reader

    def prefetch(self, keys: Keys) -> None:
        """Begin to pull the rows of the next batch while this one is computed; returns at once.

        The next forward pass with the same distinct keys, before this step's `sync.step` or in the step after it, has
        these rows. They are as they are on the shards now: without what this step changes. So they count for the
        staleness of that step as a pull made now. Where replicas step together (staleness 0) nothing is done: the rows
        of a step are there when the one before has ended.
        """
        reader, (whole, _) = self._attached(), self._keys(keys)
        table, given = reader.table(self.table), _flat(whole).copy()
        distinct = ordered_keys(given, table)
        self._prefetched.append((given, distinct))
        reader.prefetch(table, distinct.keys)

    @property
    def cache_hits(self) -> float | None:
        """Share of the keys read so far that were in the table's cache; None: it has none, or nothing was read."""
        cache = None if self._reader is None else self._reader.caches.get(self.table)
        return cache.hits / cache.reads if cache is not None and cache.reads else None

    def take(self) -> list[PulledRows]:
        """What the forward passes since the last step have pulled, with gradients; they are forgotten here."""
        pulled, self.pulled = self.pulled, []
        return [one for one in pulled if one.rows.grad is not None]


class Embedding(EmbeddingBag):
    """The row of each key, as `torch.nn.Embedding`; the rows lie on the shards: see `EmbeddingBag`."""

    def __init__(self, job: ScriptJob | Mapping[str, LoadedTable], table: str) -> None:
        super().__init__(job, table)

    def forward(  # type: ignore[override]
        self, keys: Keys, offsets: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(..., width) float32 rows of (...) keys; lists in a list have one length."""
        whole, starts = self._keys(keys)
        if starts is not None:
            with located():
                if len({len(one) for one in keys}) > 1:
                    raise UserError(f"{self._name}: lists of keys of several lengths, which EmbeddingBag takes")
            whole = whole.reshape(len(keys), -1)
        rows, places = self._rows(whole)
        bags = bags_of(places.reshape(-1, 1), None, len(rows))
        made: torch.Tensor = functional.embedding(places, rows) if bags is None else bag_sums(rows, bags)
        return made.view(*places.shape, self.width)


def _flat(keys: torch.Tensor) -> np.ndarray:
    """(n,) int64 of the keys of a batch, in place where they are on the CPU."""
    flat: np.ndarray = keys.cpu().numpy().reshape(-1)
    return flat


def embeddings_of(root: torch.nn.Module, tables: Mapping[str, TableSection]) -> list[EmbeddingBag]:
    """The modules in a module that read rows of the job; raises ModelError as `EmbeddingBag.check_table` does."""
    found = [one for one in root.modules() if isinstance(one, EmbeddingBag) and not one.loaded]
    for one in found:
        one.check_table(tables)
    return found


def digest_with(modules: Sequence[EmbeddingBag], digest: str) -> str:
    """The digest of a script with the tables whose rows these modules read."""
    return with_tables(digest, {one.table for one in modules})


def row_gradients(modules: Sequence[EmbeddingBag]) -> dict[str, list[RowGradients]]:
    """By table, what all modules have pulled since the last step, with its gradients; they forget it."""
    found: dict[str, list[RowGradients]] = {}
    for module in modules:
        found.setdefault(module.table, []).extend((one.keys, _gradient(one)) for one in module.take())
    return found


def _gradient(one: PulledRows) -> np.ndarray:
    assert one.rows.grad is not None
    found: np.ndarray = one.rows.grad.float().cpu().numpy()
    return found
