"""Materialised datasets of Ray as Parquet files, each block one, which a job's workers lease like any others."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from dbelief.data.files.locations import exists
from dbelief.data.streams.formats.parquet import check_table
from dbelief.data.streams.ranges import unit_size
from dbelief.errors import DataError, RuntimeFailure, UserError
from dbelief.job import Job, ParquetData
from dbelief.launch.elsewhere import marker, not_shared
from dbelief.process.atomic_file import write_whole
from dbelief.storage.object_store import connect
from dbelief.url import Url

from .member import in_words

PROGRESS_S = 300.0
"""How long no block is ready before that is an error, in seconds."""
UNIT_ROWS = 4096
"""Most rows of a unit, which is a row group."""
UNIT_BYTES = 16 << 20
"""Bytes of rows that a unit has at most, where it has several."""


class ReadBlock(NamedTuple):
    """What is known of a block before it is written.

    Attributes
    ----------
    rows, size
        Its rows, and their bytes in memory.
    digest
        Of its content.
    schema
        pyarrow's, without types that are Ray's own.
    gaps
        By the name of a column the first row, from 0, where a value is null or NaN.
    head
        Table of the first row.
    """

    rows: int
    size: int
    digest: str
    schema: Any
    gaps: Mapping[str, int]
    head: Any


def written(job: Job, datasets: Mapping[str, Any]) -> dict[str, Path | Url]:
    """Write datasets below the job's output, by Ray tasks; by the same names, the folder or prefix of each.

    A lease may be trained again, on another node: units are row groups of files, which do not change. A folder is named
    by its content, `dataset-DIGEST`, and stays; what is there already is not written again. Files are in the order of
    their digests: Ray leaves that of the blocks open, and another execution has another one.

    Cost: a pass over the blocks, and one in which their Parquet files are written. A task holds one block twice.

    Raises
    ------
    UserError
        One is no materialised dataset; or its columns, types or missing values are none that the job can train with.
    RuntimeFailure
        A block was lost, could not be written, or was not ready in time.
    """
    import ray

    if not isinstance(job.data, ParquetData):
        raise UserError(f"datasets of Ray need data: {{source: parquet, ...}} in the job, not {job.data.source}")
    for name, dataset in datasets.items():
        _check_kind(name, dataset)
    if not ray.is_initialized():
        raise UserError("the connection to Ray with which the datasets were made is closed")
    output, file = job.output if isinstance(job.output, Url) else Path(job.output).absolute(), ""
    with ExitStack() as stack:
        if isinstance(output, Path):
            output.mkdir(parents=True, exist_ok=True)
            file = str(stack.enter_context(marker(output)))
        return {name: _written(name, one, job.data, output, file) for name, one in datasets.items()}


def _check_kind(name: str, dataset: Any) -> None:
    from ray.data.dataset import Dataset, MaterializedDataset

    if not isinstance(dataset, Dataset):
        raise UserError(f"{name} is a {type(dataset).__name__}, must be a ray.data.Dataset")
    if not isinstance(dataset, MaterializedDataset):
        raise UserError(
            f"{name} is lazy: Ray executes it anew for each use, and may give other rows, or another order; pass "
            f"{name}.materialize()"
        )


def _written(name: str, dataset: Any, spec: ParquetData, output: Path | Url, file: str) -> Path | Url:
    """Write one dataset; `file`: one that all nodes must have."""
    tables = dataset.to_arrow_refs()
    found = _done(examined, [(table, file) for table in tables])
    pairs = [(block, table) for block, table in zip(found, tables, strict=True) if block.rows]
    check_blocks(name, [block for block, _ in pairs], spec)
    pairs.sort(key=lambda pair: pair[0].digest)
    blocks = [block for block, _ in pairs]
    rows, size = sum(block.rows for block in blocks), sum(block.size for block in blocks)
    unit = min(unit_size(None, UNIT_ROWS, rows), max(1, UNIT_BYTES * rows // max(1, size)))
    digest = hashlib.sha256("".join([str(unit), *(block.digest for block in blocks)]).encode()).hexdigest()
    folder = output / f"dataset-{digest[:16]}"
    _done(write_block, [(table, folder / f"{place:06}.parquet", unit) for place, (_, table) in enumerate(pairs)])
    return folder


def check_blocks(name: str, blocks: Sequence[ReadBlock], spec: ParquetData) -> None:
    """Check what can be known before anything is written; `name`: of the dataset, in messages.

    Raises
    ------
    DataError
    """
    if not blocks:
        raise DataError(f"{name}: there are no rows")
    check_table(blocks[0].head, spec, name)
    for place, block in enumerate(blocks):
        if not block.schema.equals(blocks[0].schema):
            kinds = [", ".join(f"{one.name}: {one.type}" for one in own.schema) for own in (block, blocks[0])]
            raise DataError(f"{name}, block {place}: columns are ({kinds[0]}), and of the first block ({kinds[1]})")
        for column, row in block.gaps.items():
            where = f"{name}, block {place}, column {column!r}, row {row} (from 0)"
            if column in spec.target:
                raise DataError(f"{where}: a target is missing")
            if column not in spec.ignore and not spec.fills:
                raise DataError(f"{where}: is missing; data.missing: mean or zero fills gaps")


def examined(table: Any, file: str) -> ReadBlock:
    """Task: read a block; `file`: one that the node must have, or ""."""
    import numpy as np
    import pyarrow

    if file and not Path(file).exists():
        import ray

        raise UserError(f"node {ray.util.get_node_ip_address()}: it {not_shared(Path(file).parent)}")
    table = _plain(table)
    hashed = hashlib.sha256()
    for batch in table.to_batches():
        hashed.update(batch.serialize())
    gaps = {name: table.column(place).is_null(nan_is_null=True) for place, name in enumerate(table.column_names)}
    first = {name: int(np.argmax(own.to_numpy())) for name, own in gaps.items() if own.to_numpy().any()}
    head = table.take(pyarrow.array([0] * bool(table.num_rows), pyarrow.int64()))
    return ReadBlock(table.num_rows, table.nbytes, hashed.hexdigest(), table.schema.remove_metadata(), first, head)


def write_block(table: Any, where: Path | Url, unit: int) -> None:
    """Task: write a block, a row group for each `unit` rows, unless it is there: its folder is named by the content."""
    from pyarrow.parquet import write_table

    if exists(where):
        return
    content = io.BytesIO()
    write_table(_plain(table), content, row_group_size=unit)
    if isinstance(where, Url):
        connect(where).replace(where, content.getvalue())
        return
    where.parent.mkdir(exist_ok=True)
    write_whole(where, content.getvalue())


def _plain(table: Any) -> Any:
    """A table whose columns of tensors, each of one shape, are lists of numbers, as other programs read them."""
    import pyarrow

    for place, field in enumerate(table.schema):
        if isinstance(field.type, pyarrow.BaseExtensionType):
            own = pyarrow.chunked_array([part.storage for part in table.column(place).chunks], field.type.storage_type)
            table = table.set_column(place, field.name, own)
    return table


def _done(task: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What a task returns for each of these arguments, in their order, as the cluster has room.

    Raises
    ------
    DbeliefError
        What a task raised, or in its place a RuntimeFailure that names another error.
    """
    import ray
    from ray.exceptions import RayError

    left = running = [ray.remote(task).remote(*call) for call in calls]
    try:
        while left:
            ready, left = ray.wait(left, timeout=PROGRESS_S)
            if not ready:
                raise RuntimeFailure(f"no block of {len(left)} was ready within {PROGRESS_S:g} s")
            ray.get(ready)
        return list(ray.get(running))
    except RayError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, UserError | RuntimeFailure) else RuntimeFailure(in_words(error))) from None
    finally:
        for one in left:
            ray.cancel(one)
