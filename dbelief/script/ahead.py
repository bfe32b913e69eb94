"""A data loader that draws ahead goes on when its last batch is stepped.

A loader with processes of its own requests the next batch when one is delivered, which is before that one is stepped.
What only the step brings, or a replica that fails meanwhile, is not there then, and the loader would end as soon as it
has delivered what it has drawn. So it requests again when the loop returns to it: all that it has delivered is stepped
then. No other place sees both: the loop holds torch's iterator, and torch's iterator ends by itself.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import ref

_NEEDS = ("_next_data", "_try_put_index", "_task_info", "_num_workers", "_prefetch_factor")
"""What an iterator of torch with processes has, from 1.7 on; the single-process one has no `_try_put_index`."""


class Batches(Protocol):
    """The iteration of a sampler.

    Attributes
    ----------
    delivered
        Batches that the loader has delivered to the loop.
    """

    delivered: int

    @property
    def ready(self) -> bool:
        """Whether a batch can be drawn without a request."""
        ...


def go_on_after_steps(loader: Any, batches: Batches) -> bool:
    """Have a loader's iterator request batches before it delivers one, too; any other object is left as it is.

    Parameters
    ----------
    loader
        What has called the sampler's `__iter__`: the iterator of a `DataLoader`, perhaps before its `__init__` ends.
    batches
        What it iterates over; what it delivers is counted there.

    Returns
    -------
    bool
        Whether the loader is such an iterator.
    """
    kind = type(loader)
    if not (hasattr(kind, "_try_put_index") and hasattr(kind, "_next_data")):
        return False
    known = ref(loader)  # no cycle: the end of the last reference ends the loader's processes

    def next_data() -> Any:
        iterator = known()
        assert iterator is not None, "it is being called"
        if all(hasattr(iterator, name) for name in _NEEDS) and not getattr(iterator, "_shutdown", False):
            _draw(iterator, batches)
        data = kind._next_data(iterator)
        batches.delivered += 1
        return data

    loader._next_data = next_data
    return True


def end_unbegun(loader: Any) -> None:
    """Have an iterator whose `__init__` fails end in silence: it would look for processes that it has not started."""
    if hasattr(type(loader), "_shutdown_workers"):
        loader._shutdown = True


def _draw(iterator: Any, batches: Batches) -> None:
    """Draw what is leased, as far ahead as the loader may; where it has nothing under way, wait for more."""
    most = iterator._num_workers * iterator._prefetch_factor
    while len(iterator._task_info) < most and (batches.ready or not iterator._task_info):
        before = len(iterator._task_info)
        iterator._try_put_index()
        if len(iterator._task_info) == before:
            return
