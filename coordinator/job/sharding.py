"""The shards that hold a job's parameters: joining, failure, recovery and resharding."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core.effects import MigrateSegments, RecoverShard, RollBack
from ..core.members import Member
from .standing import Standing


class Sharding(Standing):
    """A job's events that concern its shards."""

    def _shard_joined(self, member: Member) -> None:
        """Start the recovery of a shard that joined, if its number held segments."""
        if self.placement is not None and member.number in self.members.needed:
            self.actions.append(self.recovery.recover(member, self.next_shard_epoch()))

    def member(self, kind: str, number: int, incarnation: int) -> Member | None:
        """Member with exactly this incarnation, if alive; for kind "shard" also a follower."""
        is_server = kind == "shard"
        return (self.members.find_server if is_server else partial(self.members.find, kind))(number, incarnation)

    def _why_left(self, member: Member) -> str:
        """Reason why the job released a shard; "" where it did not."""
        dismissed = member.kind == "shard" and not self.over and member.number not in self.members.needed
        return f"{self.resizing.wanted} shards are wanted" if dismissed else ""

    def _server_gone(self, member: Member, how: str, reason: str, now_s: float) -> None:
        """Handle the end of a shard or a follower."""
        if member.kind == "follower":
            self.actions += self.chains.follower_gone(member)
            return
        if self.placement is not None and self.resizing.shard_lost(member):
            self._advance(now_s)
            return
        self.patience.shard_lost = f"{member.title} at {member.address} {how}: {reason}"
        if self.placement is None:
            return
        heir, kept = self.chains.promote_follower(member, self.recovery.set_id is not None, now_s)
        self.recovery.gone(member.number, kept)
        self.ending.restart_reads()
        if heir is not None:
            self.actions.append(self.recovery.recover(heir, self.next_shard_epoch(), promoted=kept))

    def chain_told(self, shard: int, epoch: int, followed: bool, unfollowed: str) -> None:
        """Process a shard's report on its follower; `unfollowed`: why it has none."""
        if not self.over:
            news = list(self.chains.leader_reported(shard, epoch, followed, unfollowed))
            self.commit_due = self.commit_due or bool(news)
            self.actions += news

    def revived(self, revive: RecoverShard, set_id: str | None, now_s: float) -> None:
        """Record that a shard is recovered from this set, or that a new one is ready to receive segments."""
        if self.resizing.is_new(revive.place):
            if self.resizing.shard_admitted(revive):
                self._note("shard_taken_in", shard=revive.place.shard)
                self._advance(now_s)
            return
        due = self.recovery.revived(revive, set_id)
        if due is not None:
            event = "promoted" if revive.promoted else "shard_back"
            self._note(event, shard=revive.place.shard, set=set_id)
            self.chains.promotion_done(revive.place.shard)
            self.actions += due
            if self.recovery.rollback_set is not None and not self.recovery.unavailable:
                self.actions += [*self.chains.detach_all(), RollBack(self.recovery.rollback_set)]
            self._advance(now_s)

    def rolled_back(self, set_id: str, state: dict[str, Any], now_s: float) -> None:
        """Record that all shards restored this set."""
        if self.over or not self.recovery.rolled_back(set_id):
            return
        back = self.training.rewind(state["batch"], now_s)
        self._note("rolled_back", set=set_id, iterations=back)
        if back:  # the tested parameters are lost
            self.progress.test = None
        self.commit_due = True
        self._advance(now_s)

    # -- resharding --------------------------------------------------------------------------------------

    def want_shards(self, shards: int, now_s: float) -> None:
        """Request a number of shards.

        Raises
        ------
        Rejected
            See `Resharding.request`.
        """
        self.actions += self.resizing.request(shards, self.state, now_s)
        if self.resizing.running:
            self.actions += self.chains.detach_all()
        self.commit_due = True
        self._advance(now_s)

    def moved(self, move: MigrateSegments, seconds: float, sent: int) -> None:
        """Record a migration: `sent` bytes of segments are now served by another shard, after `seconds`."""
        self.commit_due = self.resizing.moved(move, seconds, sent) or self.commit_due

    def not_moved(self, move: MigrateSegments, reason: str, now_s: float) -> None:
        """Record a failed migration: the segments stay at their shard."""
        self._note("not_moved", shard=move.giver, to=move.taker, segments=len(move.segments), reason=reason)
        self.resizing.migration_failed(move, now_s)

    def told_holdings(self, move: MigrateSegments, now_s: float) -> None:
        """Record that both shards of a migration have their ownership, whatever its outcome."""
        self.resizing.ownership_confirmed(move)
        self._advance(now_s)
