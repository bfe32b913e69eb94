"""A probe of a store: whether it creates objects conditionally, which all that is exclusive rests on."""

from __future__ import annotations

import os

from dbelief.errors import StorageError, Unavailable, UserError
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url


def probe(store: ObjectStore, prefix: Url) -> None:
    """Check that a store can be written below a prefix, and that of two creations of one object one is refused.

    The object that is written for this is removed.

    Raises
    ------
    UserError
        It cannot, or both succeed; names the prefix and the cause.
    """
    url = prefix / f"probe-{os.urandom(8).hex()}"
    try:
        both = store.create(url, b"first") and store.create(url, b"second")
        store.delete([url])
    except (StorageError, Unavailable) as error:
        raise UserError(str(error).replace(url, prefix)) from None
    if both:
        raise UserError(
            f"{prefix}: does not create objects conditionally (If-None-Match), so two coordinators could commit one set"
        )
