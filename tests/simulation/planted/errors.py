"""Errors that the simulation must find: one to three lines each, as a refactoring or a small mistake could introduce.

Those of tables of rows are in `table_errors.py` and `row_errors.py`.
"""

from .planted import Planted
from .row_errors import ROW_ERRORS
from .table_errors import TABLES

_SHARDS = (
    Planted(
        "duplicate_push_acknowledged_without_follower",
        "ps_server/rpc/push.py",
        """\
        if self._controller.replicates:
""",
        """\
        if self._controller.replicates and self._reply.duplicates < self._reply.acknowledged - self._acknowledged:
""",
        "A push that is sent again after a broken stream is acknowledged before the follower has it; it is lost if the "
        "shard fails then and the follower is promoted.",
    ),
    Planted(
        "lost_follower_not_waited_for",
        "ps_server/replication/link.py",
        "self.state = LinkState.LOST if self.state is LinkState.IN_SYNC else LinkState.UNREPLICATED",
        "self.state = LinkState.UNREPLICATED",
        "After the link to an in-sync follower breaks, pushes are acknowledged before the coordinator has detached the "
        "follower; if the shard fails then, the promoted follower lacks them.",
    ),
    Planted(
        "journal_begins_after_the_lock",
        "ps_server/replication/sender.py",
        """\
copy=True)
            segment.journal = self._link.append
        for message in encode(carried):
""",
        """\
copy=True)
        segment.journal = self._link.append
        for message in encode(carried):
""",
        "A push between the copy of a segment for a new follower and the start of its journal is not replicated; it is "
        "lost, or its successor breaks the link, when the follower catches up under load and is promoted.",
    ),
    Planted(
        "segment_served_after_its_capture",
        "ps_server/replication/migration.py",
        """\
            segment.moved_to = f"is on its way to {where}"
            carried = capture(segment, shard.barrier.passed_clocks(index), shard.answers.for_segment(index), copy=False)
        finally:
            segment.lock.release()
        self._sent[index] = segment
""",
        """\
            carried = capture(segment, shard.barrier.passed_clocks(index), shard.answers.for_segment(index), copy=False)
        finally:
            segment.lock.release()
        segment.moved_to = f"is on its way to {where}"
        self._sent[index] = segment
""",
        "During resharding, a push that is applied between the capture of a segment and its mark as moved is "
        "acknowledged, and the receiving shard's ledger lacks it.",
    ),
    Planted(
        "promoted_versions_not_above_the_heads",
        "ps_server/replication/apply.py",
        "segment.version = segment.first_version = max(shard_epoch * VERSIONS_PER_INCARNATION, segment.version + 1)",
        "segment.version = segment.first_version = segment.version + 1",
        "After a promotion, versions that the failed head had returned for unacknowledged pushes are used again, so a "
        "worker that has them gets 'unchanged' for parameters that differ.",
        "downpour",
    ),
    Planted(
        "follower_keeps_no_exchange_replies",
        "ps_server/replication/apply.py",
        """\
        shard.answers.keep(push, record.exchange, record.index, (segment.version, before))
""",
        "",
        "With elastic averaging, an exchange that is sent again after its shard failed is refused by the promoted "
        "follower, which has applied it and does not have its reply; the replica ends with an error.",
    ),
    Planted(
        "restored_shard_waits_for_passed_rounds",
        "ps_server/store/staleness.py",
        "return frozenset(r for r in self._membership.at(clock) if passed.get(r, 0) <= clock)",
        "return frozenset(self._membership.at(clock))",
        "With staleness 0, a shard restored from a snapshot set waits for gradients of rounds that it has lost and "
        "that no replica pushes again, so all replicas block until their calls fail.",
    ),
    Planted(
        "in_sync_before_all_segments_arrived",
        "ps_server/replication/link.py",
        "self.confirmed = self._complete and self._needed is not None and self._acknowledged >= self._needed",
        "self.confirmed = self._needed is not None and self._acknowledged >= self._needed",
        "A follower that has acknowledged all journal records, but not all copies of segments, is reported in sync; if "
        "the shard fails at that moment, a follower without some segments is promoted.",
    ),
    Planted(
        "backup_bundle_added_twice",
        "ps_server/store/accumulator.py",
        "self.added.add(bundle)",
        "self.added.update([bundle] if ordered else [])",
        "In an unordered pass, a bundle that two replicas compute (backup task), or that is sent again after a broken "
        "stream, is added to the gradient sum twice.",
    ),
    Planted(
        "migration_during_a_lock_free_push",
        "ps_server/replication/segment_state.py",
        """\
        if not segment.busy:
            return
        segment.lock.release()
""",
        """\
        return
        segment.lock.release()
""",
        "With Hogwild, a segment is captured for resharding while a push without the lock is within it: the ledger "
        "that is sent counts the push, and the numbers that are sent may lack it.",
    ),
    Planted(
        "unserved_segment_refused_for_good",
        "ps_server/replication/migration.py",
        """\
            shard.elsewhere.add(index)  # not served yet: a call for it must be retried
""",
        "",
        "During resharding, a client with the new placement that reaches the receiving shard before its ownership "
        "command gets a final refusal instead of a retry, and the worker ends with an error.",
    ),
    Planted(
        "fence_lifted_with_the_ledger",
        "ps_server/store/admission.py",
        """\
            self.pushers = {pusher for pusher in self.pushers if pusher.incarnation not in incarnations}
""",
        """\
            self.pushers = {pusher for pusher in self.pushers if pusher.incarnation not in incarnations}
            self.fenced.difference_update(incarnations)
""",
        "A worker that was paused, fenced and forgotten is admitted again when it resumes, although its samples were "
        "returned to the pool.",
    ),
    Planted(
        "last_push_applied_again",
        "ps_server/store/ledger.py",
        "return push.sequence == last + 1",
        "return push.sequence >= last",
        "The last push, sent again after a broken stream, is applied a second time instead of being acknowledged as a "
        "duplicate.",
    ),
    Planted(
        "follower_keeps_dropped_gradients",
        "ps_server/store/segment.py",
        """\
        if any(pusher.incarnation in ended for round_ in waiting.values() for pusher in round_):
            self.append_journal(lambda: DropStagedRecord(self.span.index, self.version, ended))
""",
        "",
        "With staleness 0, the staged gradient of a failed replica is dropped at the shard and not at its follower, "
        "which applies it with the round; after a promotion the parameters contain it, and its samples train again.",
    ),
    Planted(
        "commands_of_an_old_leader_executed",
        "ps_server/controller.py",
        """\
        if command.leader_epoch < self._leader_epoch:
            raise Rejected(f"leader epoch {command.leader_epoch} is over, {self._leader_epoch} leads")
""",
        "",
        "A coordinator that was paused while another one took over resumes, and shards execute its queued commands: "
        "old members, links, ownership, sets or the stop of the job.",
    ),
    Planted(
        "replies_of_the_old_leader_kept",
        "ps_server/controller.py",
        """\
            self._leader_epoch = command.leader_epoch
            self._replies.clear()
""",
        """\
            self._leader_epoch = command.leader_epoch
""",
        "After a coordinator failover, commands whose numbers the old leader used too get its stored replies and are "
        "not executed.",
    ),
    Planted(
        "program_acknowledged_before_the_follower_ran_it",
        "ps_server/controller.py",
        """\
            reply = self._once(request.command, lambda: self._operate(request))
            self.wait_replicated(COMMAND_S)
            return reply
""",
        """\
            reply = self._once(request.command, lambda: self._operate(request))
            return reply
""",
        "With L-BFGS, a shard that fails right after a program is replaced by a follower that has not run it, while "
        "the other shards and the coordinator continue with the next program.",
    ),
)

_SNAPSHOTS = (
    Planted(
        "content_not_flushed",
        "dbelief/process/atomic_file.py",
        """\
                disk.sync(file)
                disk.rename(temporary, path)
""",
        """\
                disk.rename(temporary, path)
""",
        "Files get their names before their content is on the disk: after a power loss a complete snapshot set has "
        "empty or torn files.",
    ),
    Planted(
        "folder_not_flushed",
        "dbelief/process/atomic_file.py",
        """\
            disk.sync_folder(path.parent)
""",
        "",
        "A new name is not durable: after a power loss, a snapshot set that the coordinator has recorded as complete "
        "lacks files.",
    ),
    Planted(
        "snapshot_counts_staged_gradients",
        "ps_server/store/segment.py",
        "ledger = {key: last for key, last in self.applied_ledger().items() if self.holds(key[0])}",
        "ledger = {key: last for key, last in self.ledger.last.items() if self.holds(key[0])}",
        "With staleness 0, the ledger in a set counts gradients that wait for their round and that the set does not "
        "hold; a shard or a job that is restored from it lacks them, and takes their repetition for a duplicate.",
    ),
    Planted(
        "preserved_after_the_write",
        "ps_server/store/segment.py",
        """\
        self.before_write(w, *self.state)
        made, missed = self.applied, self.missed
        with self._aside:
            if absent or missed:
                apply_present(self.rule, w, gradient, self.state, rate, made, absent, missed, offset)
            else:
                part = slice(offset, offset + len(gradient))
                states = tuple(state[part] for state in self.state)
                apply_rule(self.rule, w[part], gradient, states, rate, made + 1, before)
""",
        """\
        made, missed = self.applied, self.missed
        with self._aside:
            if absent or missed:
                apply_present(self.rule, w, gradient, self.state, rate, made, absent, missed, offset)
            else:
                part = slice(offset, offset + len(gradient))
                states = tuple(state[part] for state in self.state)
                apply_rule(self.rule, w[part], gradient, states, rate, made + 1, before)
        self.before_write(w, *self.state)
""",
        "A push during the writing of a set gets into the set's numbers and not into its ledger; after a restore it is "
        "applied a second time.",
    ),
    Planted(
        "set_state_read_before_the_shards_wrote",
        "coordinator/runtime/executor.py",
        """\
            written = self._shards.snapshot(set_id)
            with self._step() as (machine, _):
                job, state = machine.job, machine.set_state()
""",
        """\
            with self._step() as (machine, _):
                job, state = machine.job, machine.set_state()
            written = self._shards.snapshot(set_id)
""",
        "set.json lacks leases that were granted while the shards began their files, whose pushes the files hold; a "
        "job resumed from it trains these samples twice.",
    ),
)

_COORDINATOR = (
    Planted(
        "recovered_shard_without_fences",
        "coordinator/runtime/shard_client.py",
        'rest = {"fenced": pushers(action.fenced), "forgotten": pushers(action.settled), "ready": True}',
        'rest = {"forgotten": pushers(action.settled), "ready": True}',
        "A restored or promoted shard accepts pushes of workers that were fenced before: a paused worker that resumes "
        "changes parameters with samples that others have trained.",
    ),
    Planted(
        "pending_fences_forgotten",
        "coordinator/job/persistence.py",
        """\
    for incarnation, number in sorted(unfenced.items()):
        machine.actions.append(Fence(number, incarnation))
""",
        "",
        "A worker that failed shortly before the coordinator is never fenced by the next one: its lease is not "
        "returned, and the job does not end.",
    ),
    Planted(
        "lease_reacquired_after_another_led",
        "coordinator/runtime/leader_lease.py",
        "if epoch is None or int(last) != self.epoch:",
        "if epoch is None:",
        "A coordinator that was paused while another one led and failed acquires the lease again, and continues from "
        "its own old state.",
    ),
    Planted(
        "lease_granted_before_it_is_persisted",
        "coordinator/job/machine.py",
        """\
        self.commit_due = self.commit_due or not isinstance(work, messages.Wait)
""",
        "",
        "A lease of data is granted without a write to the registry; after a coordinator failover the same samples "
        "are leased again.",
    ),
    Planted(
        "migration_not_persisted",
        "coordinator/job/machine.py",
        "self.commit_due = self.resharding.segments_migrated(move, seconds, sent) or self.commit_due",
        "self.resharding.segments_migrated(move, seconds, sent)",
        "Shards get their new ownership before the placement is in the registry; if the coordinator fails then, the "
        "next one commands the old ownership, which the sending shard cannot serve any more.",
    ),
    Planted(
        "evaluation_of_a_failed_replica_kept",
        "coordinator/scheduling/training.py",
        """\
        return self.evaluations.holder_lost(incarnation, died)
""",
        """\
        return []
""",
        "An evaluation whose replica failed is never assigned to another one, and the job never ends.",
    ),
    Planted(
        "report_totals_forgotten_at_takeover",
        "coordinator/scheduling/training.py",
        """\
        self.reports.restore(state["reports"])
""",
        "",
        "After a coordinator failover, the next report of a replica or client is counted from the time it joined "
        "again: pushes, samples and losses that are in the registry count twice.",
    ),
    Planted(
        "losses_of_finished_leases_forgotten",
        "coordinator/scheduling/training.py",
        """\
                lost = self.losses.count(incarnation, self.leases.reached.get(incarnation, 0), applied)
""",
        """\
                reached = self.leases.reached.get(incarnation, 0) if incarnation in self.leases.holders() else 0
                lost = self.losses.count(incarnation, reached, applied)
""",
        "Acknowledged pushes of a finished lease that a restored shard lacks are not counted as lost where their "
        "replica failed before its next push.",
    ),
    Planted(
        "pass_number_used_again_after_a_rollback",
        "coordinator/sandblaster/lbfgs_driver.py",
        """\
        self.number = max(number, self.number)
""",
        "",
        "With L-BFGS, after a rollback a pass gets a number that was used before: bundles of the discarded pass, and "
        "replicas that still hold its trial point, contribute to it.",
    ),
    Planted(
        "held_bundles_forgotten_at_takeover",
        "coordinator/sandblaster/pass_scheduler.py",
        '"again": [*self._unheld, *(o.bundle for o in self._outstanding.values())],',
        '"again": list(self._unheld),',
        "Bundles that replicas hold when the coordinator fails are not part of the pass at the next one: the pass ends "
        "without their samples, or never.",
    ),
    Planted(
        "postponed_commands_forgotten_at_promotion",
        "coordinator/cluster/recovery.py",
        """\
        if action.promoted:
            return self._resume_postponed()
""",
        """\
        if action.promoted:
            return []
""",
        "A fence, set or program that was postponed because a shard had failed is not issued after its follower is "
        "promoted; for example a lease is never returned, and the job does not end.",
    ),
    Planted(
        "follower_promoted_while_it_catches_up",
        "coordinator/cluster/replication.py",
        "in_sync = has_set and link.whole and follower is not None and link.follower == follower.incarnation",
        "in_sync = has_set and follower is not None and link.follower == follower.incarnation",
        "If a shard fails while its new follower still catches up, the follower is promoted with what it has: "
        "acknowledged pushes or complete segments are missing.",
    ),
    Planted(
        "incarnations_used_again_after_an_early_takeover",
        "coordinator/job/persistence.py",
        """\
    machine.members.incarnations = state["incarnations"]
""",
        """\
    if training_started(parts):
        machine.members.incarnations = state["incarnations"]
""",
        "If the coordinator fails before training starts, the next one issues incarnations that earlier members still "
        "have: two processes count as one member, and the pushes of one are duplicates of the other's.",
    ),
    Planted(
        "reads_not_repeated_at_the_end",
        "coordinator/job/shutdown.py",
        """\
        return self.phase in (ShutdownPhase.SNAPSHOT, ShutdownPhase.EXPORT)
""",
        """\
        return self.phase is ShutdownPhase.SNAPSHOT
""",
        "If a shard fails while the model is written, the last set and the export are not repeated: they read a "
        "vector that the restored shard does not have.",
    ),
    Planted(
        "urgent_action_behind_one_that_is_retried",
        "coordinator/runtime/executor.py",
        """\
                self.retries += 1
                self._run_urgent()
""",
        """\
                self.retries += 1
""",
        "The detachment or promotion of a follower waits until the action before it is done; where that one waits for "
        "it, none ever is.",
    ),
    Planted(
        "ledger_read_before_the_fence",
        "coordinator/runtime/shard_client.py",
        """\
        self._configure(fenced=pushers(incarnations))
        return self.ledgers()
""",
        """\
        ledgers = self.ledgers()
        self._configure(fenced=pushers(incarnations))
        return ledgers
""",
        "A push of a worker that only seemed to have failed, applied between the reading of the ledgers and the fence, "
        "is trained again by another one and not counted.",
    ),
    Planted(
        "members_of_the_barrier_forgotten_at_takeover",
        "coordinator/scheduling/bounded_staleness.py",
        """\
        self._members = {replica: BoundedParticipant(**member) for replica, member in state["members"]}
""",
        "",
        "With a staleness bound above 0, after a coordinator failover the shards let other replicas run ahead of those "
        "that still train a lease of the earlier coordinator.",
    ),
)

_CLIENT = (
    Planted(
        "placement_epoch_taken_at_the_end_of_a_push",
        "dbelief/rpc/client/shard_calls.py",
        "self._pushed[pushed[0].what] = began_in, pushed if",
        "self._pushed[pushed[0].what] = self.placement.epoch, pushed if",
        "If a shard is restored from a set after it acknowledged its part of a push that still waits for another "
        "shard, the next push names no base there and is refused as a gap.",
    ),
    Planted(
        "losses_counted_only_where_all_shards_lost",
        "dbelief/rpc/client/upload_call.py",
        "lost, clock = max(lost, call.lost), max(clock, call.clock)",
        "lost = call.lost if call is shard_calls[0] else min(lost, call.lost)\n"
        "            clock = max(clock, call.clock)",
        "Pushes that one of several shards lost at its restore are not reported as lost.",
    ),
    Planted(
        "call_repeated_where_its_segments_were",
        "dbelief/rpc/client/shard_call.py",
        "return self.place in placement.places",
        "return self.place.address in {place.address for place in placement.places}",
        "After segments migrated, or after a shard restarted at its address, a call in progress is repeated with the "
        "old place until its deadline, and the worker ends with an error.",
    ),
    Planted(
        "calls_not_repeated_without_a_patience",
        "dbelief/rpc/client/coordinator_client.py",
        "until = runtime.monotonic() + (self.patience_s if patience_s is None else patience_s)",
        "until = runtime.monotonic() + (patience_s or 0.0)",
        "A request for work or a report that meets a coordinator failover, or a broken connection, is not repeated, "
        "and the worker ends with an error.",
    ),
    Planted(
        "watchdog_never_counts_silence_with_progress",
        "dbelief/rpc/client/watchdog.py",
        """\
                watch.look(now_s, before_s)
            before_s = now_s
""",
        """\
                watch.look(now_s, before_s)
""",
        "After half its patience the watchdog takes every look for one after a suspension: a follower or receiver "
        "behind a cut link is never given up, so that nothing is acknowledged and commands block for ever.",
    ),
    Planted(
        "silence_counted_from_the_start",
        "dbelief/rpc/client/coordinator_client.py",
        """\
                self.beat(patience_s=0.0)
                heard_s = runtime.monotonic()
""",
        """\
                self.beat(patience_s=0.0)
""",
        "Later than the client's patience after its start, one heartbeat without an answer ends a member, so that "
        "a coordinator failover, or a short cut, ends shards and workers.",
    ),
)

_WORKER = (
    Planted(
        "push_after_a_failed_push",
        "worker/pipeline/push_thread.py",
        """\
                if self._error is None:  # after a failure, later sequence numbers must not overtake it
                    self._acknowledged(slot, self._push(slot))
""",
        """\
                self._acknowledged(slot, self._push(slot))
""",
        "After a push failed at one shard, the next one that is queued is still sent: it is applied at the other "
        "shards, or skips the failed one by its base, so that more than one push is trained twice or one is missing.",
    ),
    Planted(
        "fetch_does_not_wait_for_the_push",
        "worker/strategies/downpour.py",
        """\
            fetch = Fetch(spare.host, spare.versions, slot.fetch)
""",
        """\
            self._shards.pull(spare.host, spare.versions, clock=slot.fetch)
""",
        "Without overlap, parameters are fetched while the replica's own push is still in progress: one replica is "
        "not SGD any more, and a fetch for a clock shows pushes as done that are not.",
    ),
    Planted(
        "step_reported_before_it_is_written",
        "worker/strategies/group.py",
        """\
        if writes and step == self._cadence.steps(lease.samples) - 1:
            return done
""",
        "",
        "Rank 0 of a group reports its last step before it has written the result: if it fails between, the "
        "coordinator takes the result for written, and shards and model lack the steps of the block.",
    ),
    Planted(
        "best_reported_before_it_is_stored",
        "worker/replica.py",
        """\
            session.assign(reply.store_as, copy.host)
            self._ranks.barrier()
            self._reporter.report(stored_lease=message.lease)
""",
        """\
            self._reporter.report(stored_lease=message.lease)
            session.assign(reply.store_as, copy.host)
            self._ranks.barrier()
""",
        "The parameters of the best evaluation count as stored before they are: if the replica fails between, the "
        "export and the last test read an old or incomplete vector.",
    ),
    Planted(
        "steps_of_the_last_block_reported_again",
        "worker/strategies/group.py",
        "self.steps, last = 0, None",
        "last = None",
        "If a group fails before its first step, for example because a member failed while connecting, the steps of "
        "the block before are reported for it: samples count as trained that were not.",
    ),
)

_DILOCO = (
    Planted(
        "clocks_of_other_fragments_not_reported",
        "dbelief/rpc/client/shard_calls.py",
        "known = [*calls, *(call for _, earlier in self._pushed.values() for call in earlier)]",
        "known = list(calls)",
        "A restored shard waits for a round of a fragment that a replica had pushed, while the replica waits in the "
        "push of another fragment for those who wait there.",
        "diloco",
    ),
    Planted(
        "later_push_with_all_its_weight",
        "ps_server/store/segment.py",
        "one.samples * _decayed(self.stale, age)",
        "one.samples",
        "With a quorum a push that comes too late has the weight of one in time.",
        "diloco-quorum",
    ),
    Planted(
        "later_push_kept_for_its_own_round",
        "ps_server/store/segment.py",
        "due = sorted(clock for clock in self.staged if clock <= self.rounds)",
        "due = [self.rounds] if self.rounds in self.staged else []",
        "With a quorum a push that comes too late waits for ever: its samples are acknowledged and have no effect.",
        "diloco-quorum",
    ),
    Planted(
        "position_at_the_end_of_the_round",
        "dbelief/training/local_rounds.py",
        "            position=self._position,\n",
        """\
            position=min(-(-self._position // self._rounds.samples) * self._rounds.samples, self._lease.samples),
""",
        "A fragment that is pushed in the middle of a round counts the samples of the rest of it; where the replica "
        "fails then, the fragment lacks them.",
        "diloco",
    ),
    Planted(
        "clock_after_the_step",
        "dbelief/training/local_rounds.py",
        "self._lease.clock + self._before // self._rounds.samples",
        "self._lease.clock + self._position // self._rounds.samples",
        "What is pushed at the end of a round has the clock of the next one, and no round has all its pushes.",
        "diloco",
    ),
    Planted(
        "last_push_of_a_lease_travels",
        "worker/strategies/diloco.py",
        "if exchange.following is None or self._helper is None:",
        "if self._helper is None:",
        "A replica requests work before its last push is acknowledged, and its lease is never reported as done.",
        "diloco",
    ),
    Planted(
        "travelling_push_forgotten_at_the_next",
        "dbelief/training/local_rounds.py",
        "return bool(self._travelling) and (bool(self.due) or self._behind >= self._settings.delay)",
        "return bool(self._travelling) and self._behind > self._settings.delay",
        "Where the next push begins, the one under way is not waited for, and the replica never continues from its "
        "answer.",
        "diloco",
    ),
    Planted(
        "answer_merged_again",
        "dbelief/training/local_rounds.py",
        "arrived, self._travelling = self._travelling, ()",
        "arrived = self._travelling",
        "What has arrived is merged again after later steps.",
        "diloco",
    ),
    Planted(
        "all_fragments_merged_with_one",
        "dbelief/training/local_rounds.py",
        "self._travelling = () if last else due",
        "self._travelling = () if last else self._fragments",
        "Where one fragment arrives, the other one is merged again with what it has brought before.",
        "diloco",
    ),
    Planted(
        "two_rounds_of_one_number",
        "dbelief/training/local_rounds.py",
        "self._closing, self._done = self._done, PushStats(sequence=self._done.sequence + 1, lease=self._lease.id)",
        "self._closing, self._done = self._done, PushStats(sequence=self._done.sequence, lease=self._lease.id)",
        "Shards take the pushes of a lease's second round for a repetition of those of the first.",
        "diloco",
    ),
    Planted(
        "difference_from_the_last_push",
        "dbelief/training/local_rounds.py",
        "self.backend.xp.subtract(self.fetched.device[own], self.values[own], out=self.difference[own])",
        "self.backend.xp.subtract(self._sent[own], self.values[own], out=self.difference[own])",
        "A push has what changed since the last one was sent, its merge included, and not since what it had brought.",
        "diloco",
    ),
    Planted(
        "samples_of_a_fragment_not_reset",
        "dbelief/training/local_rounds.py",
        """\
            fragment.pushed()
""",
        "",
        "The weight of a push in the mean of its round counts all samples of its replica so far.",
        "diloco",
    ),
    Planted(
        "mean_without_weights",
        "dbelief/optim/round_mean.py",
        "share = np.float32(weight / total)",
        "share = np.float32(1 / len(counted))",
        "Rounds in which replicas have made different numbers of steps have another mean.",
        "diloco",
    ),
    Planted(
        "round_summed_as_it_arrived",
        "ps_server/store/segment.py",
        "for who, one in sorted(self.staged[clock].items())]",
        "for who, one in self.staged[clock].items()]",
        "The bits of a round depend on the order in which its pushes arrived.",
        "diloco",
    ),
    Planted(
        "outer_step_for_each_push",
        "ps_server/store/segment.py",
        """\
        mean, absent = self._mean(pushed)
        self._step(mean, rate, absent=absent)
""",
        """\
        for gradient, weight, absent in pushed:
            self._step(gradient * np.float32(weight / sum(weights)), rate, absent=absent)
""",
        "The outer rule's velocity decays with each replica's push and not once in a round.",
        "diloco",
    ),
    Planted(
        "applied_gradients_stay_staged",
        "ps_server/store/segment.py",
        """\
        for clock in due:
            del self.staged[clock]
""",
        "",
        "Gradients of closed rounds count as waiting: each later round has them again.",
        "diloco",
    ),
)

PLANTED = (*_SHARDS, *_SNAPSHOTS, *_COORDINATOR, *_CLIENT, *_WORKER, *_DILOCO, *TABLES, *ROW_ERRORS)
