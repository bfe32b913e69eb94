"""Which shards hold a job's parameters: they join, die and come back, and there may be more of them, or fewer."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core.effects import MigrateSegments, RecoverShard, RollBack
from ..core.members import Member
from .standing import Standing


class Sharding(Standing):
    """A job, as far as it is about its shards' lives."""

    def _shard_joined(self, member: Member) -> None:
        """A shard's life begins: one that held segments is brought back."""
        if self.placement is not None and member.number in self.members.needed:
            self.actions.append(self.recovery.recover(member, self.next_shard_epoch()))

    def member(self, kind: str, number: int, incarnation: int) -> Member | None:
        """This very life, where it is alive; of kind "shard" also one that follows."""
        is_server = kind == "shard"
        return (self.members.find_server if is_server else partial(self.members.find, kind))(number, incarnation)

    def _why_left(self, member: Member) -> str:
        """Why the job let a shard go; "" where it did not."""
        dismissed = member.kind == "shard" and not self.over and member.number not in self.members.needed
        return f"{self.resizing.wanted} shards are wanted" if dismissed else ""

    def _server_gone(self, member: Member, how: str, reason: str, now_s: float) -> None:
        """A shard, or one that follows, is over."""
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
        """A shard tells how it stands with its follower, or `unfollowed` is why it has none."""
        if not self.over:
            news = list(self.chains.leader_reported(shard, epoch, followed, unfollowed))
            self.commit_due = self.commit_due or bool(news)
            self.actions += news

    def revived(self, revive: RecoverShard, set_id: str | None, now_s: float) -> None:
        """A shard is back in another process, with what this set holds; or a new one is ready to take segments."""
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
        """All shards hold this set again."""
        if self.over or not self.recovery.rolled_back(set_id):
            return
        back = self.training.rewind(state["batch"], now_s)
        self._note("rolled_back", set=set_id, iterations=back)
        if back:  # those parameters are gone
            self.progress.test = None
        self.commit_due = True
        self._advance(now_s)

    # -- more of them, or fewer --------------------------------------------------------------------------

    def want_shards(self, shards: int, now_s: float) -> None:
        """Somebody wants so many.

        Raises
        ------
        Refused
            See `Resizing.want`.
        """
        self.actions += self.resizing.request(shards, self.state, now_s)
        if self.resizing.running:
            self.actions += self.chains.detach_all()
        self.commit_due = True
        self._advance(now_s)

    def moved(self, move: MigrateSegments, seconds: float, sent: int) -> None:
        """Segments, of so many bytes, are at another shard, which serves them; that took so many seconds."""
        self.commit_due = self.resizing.moved(move, seconds, sent) or self.commit_due

    def not_moved(self, move: MigrateSegments, reason: str, now_s: float) -> None:
        """Segments stay where they were."""
        self._note("not_moved", shard=move.giver, to=move.taker, segments=len(move.segments), reason=reason)
        self.resizing.migration_failed(move, now_s)

    def told_holdings(self, move: MigrateSegments, now_s: float) -> None:
        """Both shards of a move know what they hold, whatever came of it."""
        self.resizing.ownership_confirmed(move)
        self._advance(now_s)
