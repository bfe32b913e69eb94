"""Errors of tables that the simulation must find: sets of changes, limits, codecs, pieces, rows ahead and kept."""

from .planted import Planted

_SETS = (
    Planted(
        "removed_rows_not_counted_out",
        "ps_server/store/bucket.py",
        """\
            self.history.removed(gone)
""",
        "",
        "What a set has of a bucket's changes takes later rows for those that were removed: rows of other keys.",
        "tables",
    ),
    Planted(
        "rows_counted_out_of_one_full_write",
        "ps_server/tables/row_history.py",
        """\
        for write in self.writes:
            write.removed(gone)
""",
        """\
        for write in self.writes[:1]:
            write.removed(gone)
""",
        "Rows that are removed while a set with all rows is not known to be complete count as there in later sets.",
        "tables",
    ),
    Planted(
        "later_removals_by_earlier_numbers",
        "ps_server/tables/row_history.py",
        "self._stay = stay[~gone[: stay.size]]",
        "self._stay = np.flatnonzero(~gone[: self._rows]).astype(np.uint32)",
        "The second removal since a set with all rows takes the numbers of rows now for those in the set.",
        "tables",
    ),
    Planted(
        "rows_of_the_first_push_since_left_out",
        "ps_server/tables/row_history.py",
        "pushed: np.ndarray = ages < number - self.number",
        "pushed: np.ndarray = ages < number - self.number - 1",
        "A set of changes lacks what the first push since the set with all rows has changed.",
        "tables",
    ),
    Planted(
        "changes_taken_for_all_rows",
        "ps_server/store/bucket.py",
        """\
        self.history.end(None)
        base.named""",
        """\
        base.named""",
        "Where a set has changes of a bucket counts as the place of all its rows: the next set builds on it.",
        "tables",
    ),
    Planted(
        "files_that_one_shard_needs",
        "coordinator/runtime/shard_client.py",
        "sorted({name for reply in replies for name in reply.needs})",
        "sorted(replies[0].needs)",
        "When older sets are removed, the file with all rows of another shard's buckets goes with them.",
        "tables",
    ),
    Planted(
        "last_pushes_left_as_they_were_in_a_set",
        "dbelief/checkpoint/row_changes.py",
        """\
            held[updated] = values[:first]""",
        """\
            if own != "stamps":
                held[updated] = values[:first]""",
        "Rows restored from changes have the last pushes of the set with all rows: others are evicted.",
        "tables",
    ),
    Planted(
        "removed_rows_restored",
        "dbelief/checkpoint/row_changes.py",
        "stay[removed] = False",
        "stay[removed[1:]] = False",
        "A row that was removed since the set with all rows is there again after a restore.",
        "tables",
    ),
)
_LIMITS = (
    Planted(
        "first_of_equal_rows_kept",
        "ps_server/tables/eviction.py",
        "gone[equal[equal.size - left :]] = False",
        "gone[equal[:left]] = False",
        "Of rows with the same last push those made first stay: a copy made by an earlier version removes others.",
        "tables",
    ),
    Planted(
        "gaps_filled_with_the_last_rows",
        "ps_server/tables/arena.py",
        "values[: int(stay.sum())] = values[stay]",
        "values[np.flatnonzero(gone[: stay.sum()])] = values[stay.sum() :][stay[stay.sum() :]]",
        "A removal fills the gaps with the last rows: changes since a set name others, and ties are broken otherwise.",
        "tables",
    ),
    Planted(
        "counters_not_restored",
        "ps_server/tables/key_counters.py",
        "self.held[:] = held if held.size == self.held.size else 0",
        "self.held[:] = 0",
        "A follower, a moved bucket and a restored one count the pushes of keys without rows from 0.",
        "tables-rounds",
    ),
    Planted(
        "pushes_with_other_keys_counted",
        "ps_server/tables/arena.py",
        "self.counters.reached(hashed[without])",
        "self.counters.reached(hashed[: without.size])",
        "Keys without a row are counted in the places of keys that have one.",
        "tables-rounds",
    ),
)
_WIRE = (
    Planted(
        "one_scale_for_all_rows",
        "dbelief/codec/packed_rows.py",
        "largest = np.abs(rows).max(axis=1)",
        "largest = np.full(len(rows), np.abs(rows).max())",
        "Rows with small gradients are sent with the scale of the largest in the push: coarsely.",
        "tables-bounded",
    ),
    Planted(
        "keys_cut_to_32_bits",
        "dbelief/codec/packed_rows.py",
        "out[:first].view(u8)[:] = np.frombuffer(payload, u8, 8 * count, _HEAD)",
        "out[:first].view(np.int64)[:] = np.frombuffer(payload, np.int64, count, _HEAD) << 32 >> 32",
        "Encoded rows lose half of their keys' bits.",
        "tables-bounded",
    ),
    Planted(
        "last_piece_taken_for_a_payload",
        "dbelief/rpc/wire/bulk.py",
        "if not self._pieces and True not in",
        "if True not in",
        "The last piece of a payload, in a message of its own, is taken for all of it.",
        "tables",
    ),
    Planted(
        "pieces_of_a_broken_stream_kept",
        "dbelief/rpc/client/rows_call.py",
        """\
        self._joiner = bulk.PayloadJoiner()  # of this stream's answers
""",
        "",
        "After a stream broke within a payload, its first pieces are joined with those of the next stream.",
        "tables",
    ),
    Planted(
        "pieces_joined_with_the_last_one_first",
        "dbelief/rpc/wire/bulk.py",
        'return replace(part, data=memoryview(b"".join(data)))',
        'return replace(part, data=memoryview(b"".join(data[-1:] + data[:-1])))',
        "Rows of a long payload are those of other keys.",
        "tables",
    ),
)
_READS = (
    Planted(
        "kept_rows_a_step_too_long",
        "dbelief/sparse/row_cache.py",
        "= step + self.age, clock, self._calls",
        "= step + self.age + 1, clock, self._calls",
        "A kept row is read for one step more than the job file says.",
        "tables",
    ),
    Planted(
        "first_pushed_row_dropped_alone",
        "dbelief/sparse/row_cache.py",
        "self._due[slots[slots >= 0]] = _DROPPED",
        "self._due[slots[slots >= 0][:1]] = _DROPPED",
        "A replica reads rows without its own last push.",
        "tables-bounded",
    ),
    Planted(
        "kept_rows_renumbered_without_their_numbers",
        "dbelief/sparse/row_cache.py",
        "for values in (self._keys, self._rows, self._versions,",
        "for values in (self._keys, self._versions,",
        "When a cache makes room, its keys get the rows of others.",
        "tables-bounded",
    ),
    Planted(
        "newest_version_of_kept_rows",
        "dbelief/sparse/table_reader.py",
        "np.minimum(kept, pulled)",
        "np.maximum(kept, pulled)",
        "The staleness of a push counts from the newest rows that it is computed from, not from the oldest.",
        "tables-bounded",
    ),
    Planted(
        "kept_rows_pulled_for_the_step_alone",
        "dbelief/sparse/table_reader.py",
        "self._pull(table, keys[missing], clock)",
        "self._pull(table, keys[missing], self.clock)",
        "Rows that are kept for later clocks were pulled without a wait for what these require.",
        "tables-bounded",
    ),
    Planted(
        "rows_ahead_pulled_for_the_step_alone",
        "dbelief/sparse/table_reader.py",
        "lambda: self._pull(table, keys, clock)",
        "lambda: self._pull(table, keys, clock - 1)",
        "Rows of the next batch are pulled without a wait for what its clock requires.",
        "tables-bounded",
    ),
    Planted(
        "rows_ahead_of_other_keys",
        "dbelief/sparse/table_reader.py",
        "np.array_equal(one.keys, keys)",
        "one.keys.size == keys.size",
        "A batch whose rows were not pulled ahead gets those of the next one.",
        "tables-bounded",
    ),
)
ROW_ERRORS = (*_SETS, *_LIMITS, *_WIRE, *_READS)
