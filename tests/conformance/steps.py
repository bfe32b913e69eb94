"""The steps of a run: its log in the vocabulary of the model, before a segment and a worker are chosen.

The model has two places for each shard. A process has the slot of a place from the moment at which the registry has it
as a member. One that still runs when another gets its place goes on in the slot beside it, until a second one does so
there. What a process without a slot does is not in the trace, except that nothing it acknowledges may reach a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dbelief.core.push import Pusher
from ps_server.replication.link import LinkState

from .events import Event
from .log import Entry, Log
from .registry_view import Chain, Registry, View

SHARDS = 3
PLACES = 2 * SHARDS
"""The slot beside that of a place is this much higher."""
NOWHERE = 15
"""Slot of a process that has none."""


@dataclass(frozen=True)
class Step:
    """An event of all traces, or one that depends on the segment and the worker: then `entry` has more."""

    event: Event
    entry: Entry | None = None


class Steps:
    """Follows one run and makes the steps that are common to all its traces."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._registry, self._stored_in = Registry(), 0
        self._slots: dict[int, int] = {}  # by process
        self._occupants: dict[int, int] = {}  # process by slot
        self._incarnations: dict[int, int] = {}  # slot by incarnation
        self._links: dict[int, tuple[int, int]] = {}  # by leader's process: its follower's, and that one's shard epoch
        self._taken_over = False
        self._replies: dict[tuple[int, Pusher | None, int], Entry] = {}
        self._acknowledged: dict[tuple[Pusher | None, int, int], Entry] = {}  # the reply that a worker has
        self._sent: dict[tuple[int, int], Entry] = {}
        self._promoted_once: set[int] = set()  # processes
        self._serving: dict[int, int] = {}  # slot by shard in service
        self.parts: list[list[Step]] = []
        self._steps: list[Step] = []

    def all(self) -> list[list[Step]]:
        """The steps of the whole run in parts, each from a first placement on: a resumed job has another."""
        makers: dict[str, Callable[[Entry], None]] = {
            "registry": self._written,
            "end": self._ended,
            "learn": partial(self._keep, kind="LEARN", slot=0),
            "begin": self._began,
            "received": self._received,
            "reply": self._replied,
            "apply": self._applied,
            "copy": partial(self._here, kind="COPY"),
            "link": self._linked,
            "command": self._commanded,
            "promote": self._promoted,
            "load": self._loaded,
            "fence": partial(self._here, kind="FENCE"),
            "read": partial(self._here, kind="READ"),
            "send": self._sent_on,
            "receive": self._arrived,
            "serve": partial(self._here, kind="SERVE"),
            "forget": partial(self._keep, kind="STOP", slot=0),
        }
        for entry in self._log.entries:
            if self._registry.view.over:
                break
            if entry.kind in makers:
                makers[entry.kind](entry)
        return self.parts

    def _emit(self, kind: str, slot: int = 0, number: int = 0, flag: bool = False, other: bool = False) -> None:
        self._steps.append(Step(Event(kind, slot, number, flag, other)))

    def _keep(
        self, entry: Entry, kind: str, slot: int, number: int = 0, flag: bool = False, other: bool = False
    ) -> None:
        """A step that depends on the segment or the worker."""
        self._steps.append(Step(Event(kind, slot, number, flag, other), entry))

    def _slot(self, process: int) -> int:
        return self._slots.get(process, NOWHERE)

    def _slot_at(self, address: str) -> int:
        """Slot of the process that serves at an address."""
        return self._slot(self._log.addresses.get(address, -1))

    # -- the registry --------------------------------------------------------------------------------------

    def _written(self, entry: Entry) -> None:
        if entry.about["registry"] != self._stored_in:  # the first; or it was lost, and the job is resumed from a set
            self._registry, self._stored_in = Registry(), entry.about["registry"]
        before = self._registry.view
        now = self._registry.write(entry.about["epoch"], entry.about["values"])
        if now.placement == 1 and before.placement != 1:
            self._start(now)
            return
        if not before.placement or not now.placement or now.over:
            return
        if now.epoch != before.epoch:
            self._taken_over = True
            self._emit("TAKE_OVER")
        if now.saved and not before.saved:
            self._emit("SAVED")
        if now.resharding != before.resharding:
            self._emit("RESHARD", flag=now.resharding)
        for shard, place in now.places.items():  # first: a process that is in service was a member before
            if shard not in before.places or before.places[shard].epoch != place.epoch:
                self._place(shard)
        self._moves(before, now)  # to processes that have not failed yet, and from shards that have their place yet
        for shard in sorted(before.places.keys() - now.places.keys()):
            self._emit("REMOVE", shard)
        self._members(before, now)
        for shard in range(SHARDS):
            self._link_decided(shard, before, now)
        for kind, incarnations in ("DEAD", now.dead - before.dead), ("SETTLE", before.dead - now.dead):
            for incarnation in sorted(incarnations):
                self._keep(Entry("worker", -1, about={"incarnation": incarnation}), kind, 0)

    def _start(self, view: View) -> None:
        """The first placement: the traces begin."""
        self._steps = []
        self.parts.append(self._steps)
        for one in (self._serving, self._slots, self._occupants, self._incarnations, self._links, self._acknowledged):
            one.clear()  # also what workers have: where the registry was lost, their incarnations are used again
        self._taken_over = False
        self._keep(Entry("start", -1, about={"view": view}), "START", 0, other=view.saved)
        for incarnation, server in sorted(view.servers.items(), key=lambda one: not one[1].leads):
            self._join(incarnation, server.shard, server.leads, server.address)
        leaders = {server.address for server in view.servers.values() if server.leads}
        for shard in sorted(view.places):
            if view.places[shard].address in leaders:  # else it has failed already
                self._place(shard)

    def _place(self, shard: int) -> None:
        led = next((i for i, one in self._registry.view.servers.items() if one.leads and one.shard == shard), None)
        if led in self._incarnations:
            self._serving[shard] = self._incarnations[led]
        self._emit("PLACE", shard)

    def _members(self, before: View, now: View) -> None:
        lost = [one for one in before.servers if one not in now.servers]
        for incarnation in sorted(lost, key=lambda one: before.servers[one].leads):  # followers first
            slot = self._incarnations.pop(incarnation)
            if self._serving.get(slot // 2) == slot:
                del self._serving[slot // 2]
            chain = now.chains.get(slot // 2, Chain())
            peer = next((one for one, at in self._incarnations.items() if at == slot ^ 1), None)
            led = before.servers[incarnation].leads  # else another process was promoted before
            promoted = led and chain.promoted is not None and chain.promoted == peer
            old = before.chains.get(slot // 2, Chain())
            if led and old.follower is not None and chain.epoch > old.epoch + 1:
                self._emit("DETACH", slot // 2)
            elif promoted and not old.whole:
                self._emit("WHOLE", slot // 2)
            self._emit("FAIL", slot, flag=promoted, other=led)
        for incarnation, server in sorted(now.servers.items(), key=lambda one: not one[1].leads):
            if incarnation not in before.servers:
                self._join(incarnation, server.shard, server.leads, server.address)

    def _join(self, incarnation: int, shard: int, leads: bool, address: str) -> None:
        taken = set(self._incarnations.values())
        free = [one for one in (2 * shard, 2 * shard + 1) if one not in taken]
        slot = min(free, key=lambda one: self._occupants.get(one) in self._slots)  # of one that has ended, if there is
        self._incarnations[incarnation] = slot
        before = self._occupants.get(slot, -1)
        if self._slots.get(before) == slot:  # it was declared failed, and has not ended
            self._slots.pop(self._occupants.get(slot + PLACES, -1), None)
            self._occupy(slot + PLACES, before)
        self._occupy(slot, self._log.addresses[address])
        self._emit("JOIN", slot, flag=leads)

    def _occupy(self, slot: int, process: int) -> None:
        self._occupants[slot], self._slots[process] = process, slot

    def _link_decided(self, shard: int, before: View, now: View) -> None:
        old, new = before.chains.get(shard, Chain()), now.chains.get(shard, Chain())
        led = next((i for i, one in before.servers.items() if one.leads and one.shard == shard), None)
        failed = led is not None and led not in now.servers
        if old.epoch == new.epoch:
            if new.whole and not old.whole:
                self._emit("WHOLE", shard)
            return
        if not failed and (old.follower is not None or new.follower is None):
            self._emit("DETACH", shard)
        if new.follower is not None:
            self._emit("FOLLOW", shard)
            if new.whole:
                self._emit("WHOLE", shard)

    def _moves(self, before: View, now: View) -> None:
        for shard, place in now.places.items():
            for segment in place.segments:
                if before.shard_of(segment) not in (None, shard):
                    self._keep(Entry("move", -1, segment), "MOVE", shard)

    # -- processes and workers -----------------------------------------------------------------------------

    def _ended(self, entry: Entry) -> None:
        slot = self._slots.pop(entry.process, NOWHERE)
        if slot != NOWHERE:
            self._emit("END", slot)

    def _began(self, entry: Entry) -> None:
        before = self._acknowledged.pop((entry.pusher, entry.sequence, entry.segment), None)
        if before is not None:  # it is sent again, as another segment's part was lost: the push is not acknowledged yet
            before.about["received"].discard(entry.segment)
        self._keep(entry, "BEGIN", self._slot_at(entry.about["address"]), entry.sequence, entry.about["base"])

    def _replied(self, entry: Entry) -> None:
        entry.about["received"] = set()
        self._replies[entry.process, entry.pusher, entry.sequence] = entry
        self._keep(entry, "ACKNOWLEDGE", self._slot(entry.process), entry.sequence)

    def _received(self, entry: Entry) -> None:
        """The worker has an acknowledgement: it counts from the moment at which the shard's process sent it."""
        process = self._log.addresses[entry.about["address"]]
        reply = self._replies.get((process, entry.pusher, entry.sequence))
        if reply is not None:
            reply.about["received"].add(entry.segment)
            self._acknowledged[entry.pusher, entry.sequence, entry.segment] = reply

    # -- shard processes -----------------------------------------------------------------------------------

    def _here(self, entry: Entry, kind: str, number: int = 0, flag: bool = False, other: bool = False) -> None:
        """A step in the process of the entry, if it has a slot."""
        slot = self._slot(entry.process)
        if slot != NOWHERE:
            self._keep(entry, kind, slot, number, flag, other)

    def _applied(self, entry: Entry) -> None:
        base, new, follower = (entry.about[name] for name in ("base", "new", "follower"))
        if follower is None:
            self._here(entry, "APPLY", entry.sequence, base, new)
        elif entry.about["assign"] and not new:
            pass  # initial values that were sent again: the journal has them again, and the rules' journal does not
        elif (entry.process, follower) in self._links.values():
            self._here(entry, "RECORD", entry.sequence, base, new)

    def _linked(self, entry: Entry) -> None:
        slot, state, command = self._slot(entry.process), entry.about["state"], entry.about["command"]
        if slot == NOWHERE:
            return
        if entry.about["epoch"] == entry.about["before"]:
            self._emit("MARK" if state is LinkState.IN_SYNC else "LOSE", slot)
        elif command is not None:  # else the process ends
            chain = self._registry.view.chains.get(slot % PLACES // 2, Chain())
            self._links[entry.process] = self._log.addresses.get(command.address, -1), command.shard_epoch
            to = self._slot_at(command.address)
            self._emit("LINK", slot, to, bool(command.address), command.epoch == chain.epoch)

    def _commanded(self, entry: Entry) -> None:
        if self._taken_over and self._slot(entry.process) != NOWHERE:
            self._emit("COMMAND", self._slot(entry.process), flag=entry.about["epoch"] == self._registry.view.epoch)

    def _promoted(self, entry: Entry) -> None:
        slot = self._slot(entry.process)
        if slot in self._incarnations.values() and entry.process not in self._promoted_once:  # else nothing changes
            self._promoted_once.add(entry.process)
            self._keep(entry, "RECOVER", slot // 2, flag=True)

    def _loaded(self, entry: Entry) -> None:
        slot = self._slot(entry.process)
        if slot in self._incarnations.values() and self._serving.get(slot // 2) != slot:  # else the job is resumed
            self._keep(entry, "RECOVER", slot // 2)

    def _sent_on(self, entry: Entry) -> None:
        address = entry.about["address"]
        entry.about["arrives"] = False
        self._sent[self._log.addresses.get(address, -1), entry.segment] = entry
        if self._slot_at(address) < PLACES:
            self._here(entry, "SEND", self._slot_at(address) // 2)

    def _arrived(self, entry: Entry) -> None:
        sent = self._sent.pop((entry.process, entry.segment), None)
        if sent is not None:
            sent.about["arrives"] = True
