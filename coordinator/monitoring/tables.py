"""Rows of the job's tables, from the reports of its shards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dbelief.rpc.pb import coordination_pb2 as wire


def totals(
    reports: Mapping[int, wire.ShardFigures], shards: Collection[int], cached: Mapping[str, tuple[int, int]]
) -> list[wire.TableFigures]:
    """Sums over these shards, by their numbers, in the order of the first report; the newest report of each counts.

    `cached`: by table, reads and hits of the replicas' caches.
    """
    found: dict[str, wire.TableFigures] = {}
    for number, report in reports.items():
        for one in report.tables if number in shards else ():
            total = found.setdefault(one.name, wire.TableFigures(name=one.name))
            total.rows += one.rows
            total.bytes += one.bytes
            total.evicted += one.evicted
            total.refused += one.refused
    for name, total in found.items():
        total.cache_reads, total.cache_hits = cached.get(name, (0, 0))
    return list(found.values())


class FullTables:
    """Tables that have become full, each once in the life of this process."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def new(self, report: wire.ShardFigures) -> Iterator[str]:
        """Names of those of which this report is the first with a key that got no row."""
        for one in report.tables:
            if one.refused and one.name not in self._known:
                self._known.add(one.name)
                yield one.name
