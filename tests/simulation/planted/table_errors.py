"""Errors of tables of rows that the simulation must find."""

from .planted import Planted

TABLES = (
    Planted(
        "rows_of_a_repeated_push_applied_again",
        "ps_server/store/bucket.py",
        """\
        return super().apply(push, gradient, offset, rate, before)
""",
        """\
        self.ledger.record(push)
        self._step(gradient, rate)
        return Outcome.APPLIED
""",
        "A bucket counts a push in its ledger and compares none: a push that is sent again after a broken stream makes "
        "its steps in the rows a second time.",
        "tables",
    ),
    Planted(
        "newest_rows_not_in_a_grown_index",
        "ps_server/tables/arena.py",
        """\
        insert(hashed[without], made, self._slots)
        self.count = stop
""",
        """\
        insert(hashed[without], made, self._slots)
        if slots_for(stop + without.size) > self._slots.size:
            self._index(stop + without.size)
        self.count = stop
""",
        "The index is made anew ahead of time, while the newest rows do not count yet: they read as initial rows, and "
        "the next push makes them again.",
        "tables",
    ),
    Planted(
        "received_rows_not_in_the_index",
        "ps_server/tables/arena.py",
        """\
        self._resize(max(FIRST_ROWS, self.count), rows)
        self._index()
""",
        """\
        self._resize(max(FIRST_ROWS, self.count), rows)
        if self.count > FIRST_ROWS:
            self._index()
""",
        "A follower, a shard that a bucket has moved to, and one that is restored find none of the rows of a small "
        "bucket: they read as initial ones, and the next pushes make them twice.",
        "tables",
    ),
    Planted(
        "restored_rows_kept_in_the_readers_buffer",
        "ps_server/tables/arena.py",
        """\
        self._resize(max(FIRST_ROWS, self.count), rows)
        self._index()
""",
        """\
        if self.count < FIRST_ROWS:
            self._resize(FIRST_ROWS, rows)
        else:
            self._held = rows
        self._index()
""",
        "Rows of a restored bucket lie where the next segment of the set is read to: they become those of another one.",
        "tables",
    ),
    Planted(
        "bucket_handed_over_without_the_state_of_its_rows",
        "ps_server/store/bucket.py",
        """\
        self._load_arrays(vectors)
""",
        """\
        self._load_arrays(vectors)
        self.arena.rows().numbers[:, self.arena.form.width :] = 0.0
""",
        "Rows that a follower or another shard receives begin with a new state of their rule: their next steps are too "
        "long.",
        "tables",
    ),
    Planted(
        "bucket_handed_over_without_its_steps",
        "ps_server/replication/segment_state.py",
        "segment.version, segment.first_version, segment.applied = carried.version, carried.born, carried.applied",
        "segment.version, segment.first_version = carried.version, carried.born",
        "A follower, and a shard that a bucket moves to, count the steps of its rule from 0: Adam's corrections begin "
        "again.",
        "tables",
    ),
    Planted(
        "bucket_accepts_pushes_after_its_capture",
        "ps_server/replication/migration.py",
        """\
            segment.moved_to = f"is on its way to {where}"
""",
        """\
            segment.moved_to = f"is on its way to {where}" if segment.span.length else ""
""",
        "During resharding, a push that waits for a bucket's lock while it is captured is accepted by the old shard, "
        "and acknowledged; the new one lacks it.",
        "tables",
    ),
    Planted(
        "buckets_without_rows_left_out_of_a_push",
        "dbelief/rpc/client/shard_client.py",
        "call = PushCall(self.job, place, [*run, *buckets] if buckets else run, upload, self._payloads(push))",
        "own = [*run, *(span for span in buckets if rows and span.index in rows)]\n"
        "            call = PushCall(self.job, place, own, upload, self._payloads(push))",
        "A push counts in the buckets that it has rows for, and in no others: the next one there is refused as a gap.",
        "tables",
    ),
    Planted(
        "keys_of_the_first_request_again",
        "dbelief/rpc/client/rows_call.py",
        "left = [(span.index, self._wanted[span.index]) for span in self.run[self.done :]]",
        "left = [(span.index, one) for span, one in zip(self.run[self.done :], self._wanted.values())]",
        "A read that goes on at another shard, after buckets have moved, asks it for the keys of the buckets that the "
        "first request began with.",
        "tables",
    ),
    Planted(
        "row_made_by_a_read",
        "ps_server/tables/arena.py",
        "found, missing = self._find(keys, hashes(keys, self._salt))",
        "found, missing = self.touch(keys, 0), 0",
        "A read makes a row of each key that has none, without a record for the follower: copies of a version differ.",
        "tables",
    ),
    Planted(
        "rows_not_preserved_for_a_set",
        "ps_server/store/bucket.py",
        "self.before_write(*self.snapshot_view.stored.arrays.values())",
        "self.before_write(*self.parts()[0].values())",
        "What is preserved is found by object, and these are new ones: a push while a set is written gets into its "
        "rows and not into its ledger.",
        "tables",
    ),
    Planted(
        "steps_not_restored_with_the_rows",
        "ps_server/store/segment.py",
        "self.applied, self.missed, self.rounds = stored.applied, stored.missed, stored.rounds",
        "self.missed, self.rounds = stored.missed, stored.rounds",
        "A bucket that is restored from a set counts the steps of its rule from 0.",
        "tables",
    ),
    Planted(
        "initial_values_not_counted_by_buckets",
        "dbelief/training/session.py",
        "if vector == PARAMETERS and self.job.tables:",
        "if vector == PARAMETERS and self.job.tables and not self.job.replicas:",
        "The push of initial values has a number that buckets never see: the next push is refused there as a gap.",
        "tables",
    ),
    Planted(
        "buckets_of_the_last_run_alone",
        "dbelief/core/placement.py",
        "return [self.spans[index] for index in place.segments if self.spans[index].kind is Kind.TABLE]",
        "first, count = place.runs[-1] if place.runs else (0, 0)\n"
        "        return [span for span in self.spans[first : first + count] if span.kind is Kind.TABLE]",
        "A shard's buckets are taken for one run: those of other tables, or moved to it later, get no push.",
        "tables",
    ),
    Planted(
        "clock_not_reported_to_buckets_without_keys",
        "dbelief/rpc/client/shard_client.py",
        "places = self.placement.places if clock else ()",
        "places: Sequence[ShardPlacement] = ()",
        "A restored bucket waits until each replica has reported its clock, which replicas that read none of its rows "
        "never do.",
        "tables-rounds",
    ),
    Planted(
        "rows_of_a_round_summed",
        "dbelief/sparse/table.py",
        "parts = [(*unpack(packed, width), np.float32(weight / total)) for packed, weight in pushed if weight]",
        "parts = [(*unpack(packed, width), np.float32(weight / weight)) for packed, weight in pushed if weight]",
        "Rows of a synchronous round step by the sum of its gradients, and dense numbers by their mean.",
        "tables-rounds",
    ),
)
