/* Exactly-once pushes: ledger, chain of two, shard incarnations, fencing, a migrating segment, coordinator failover.
 *
 * Two shards with a follower each; one segment, which migrates from shard 0 to shard 1; two workers that push to it
 * (FIRST + 1 pushes); CRASHES failures, each of which ends a process or only declares it failed while it continues;
 * TAKEOVERS failovers, after which the old leader's last command may still be received; CUTS broken connections.
 *
 * An action is one atomic step of one process; the comment before it names the code. What the coordinator decides is in
 * the registry in the same step ("persisted before it is sent"); the command is sent in a later step. Actions are
 * enabled only where they change the state, and each cause of repetition has a budget. So every run ends, and one that
 * cannot proceed is an invalid end state: one search shows safety and progress.
 *
 * The state has no numbers that only grow, so that equal situations are equal states:
 *   epoch of a shard       a process leads at most once, so "another epoch" is "another process": its messages are gone
 *   epoch of a link        a bit of the leader: its link is the one that the coordinator decided last
 *   records of a journal   those that the follower lacks, and per message how many of them it waits for
 * A vector is the set of pushes applied to it. The newest snapshot set is the initial one: a shard that is restored from
 * it has lost every push. Not in the model: numbers, the staleness barrier, bundles, exchanges, several segments (they
 * share only the order of the journal), a second snapshot set, the wait for a process to be started again.
 *
 * A name PLANT_... defined for the compiler plants one error, which the search must find.
 */

/* Failures are numbered: 0 .. 3 the process of a slot ends, 4 .. 7 it is declared failed, 8 and 9 a worker is. A search
 * with FIRST_FAILURE explores the runs whose first failure is that one, or that have none, and so SECOND_FAILURE: the
 * searches of all ten together explore all runs, in less memory. */
#ifdef FIRST_FAILURE
#define FIRST_IS(number) ((number) == FIRST_FAILURE)
#else
#define FIRST_IS(number) 1
#endif
#ifdef SECOND_FAILURE
#define SECOND_IS(number) ((number) == SECOND_FAILURE)
#else
#define SECOND_IS(number) 1
#endif
#define MAY_FAIL(number)                                                                                              \
    (crashes < CRASHES && (crashes != 0 || FIRST_IS(number)) && (crashes != 1 || SECOND_IS(number)))
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef MOVES
#define MOVES 1
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef FIRST
#define FIRST 2
#endif

#define BIT(i) (1 << (i))
#define ID(w, seq) ((w) == 0 -> (seq) - 1 : FIRST)     /* of a push, 0 .. FIRST */
#define COUNT(w) ((w) == 0 -> FIRST : 1)               /* pushes of a worker */
#define NONE 4                                         /* no slot */

/* -- shard processes: slots 0 and 1 are of shard 0, slots 2 and 3 of shard 1; the peer of slot p is p ^ 1 -------------- */

#define GONE 0        /* ended, not yet declared failed */
#define JOINED 1      /* without an assignment */
#define FOLLOWS 2     /* has a copy of its leader's segments */
#define LEADS 3

#define ABSENT 0      /* the segment is not in this process */
#define SERVED 1
#define SENT 2        /* sent to another shard: not served until ownership is confirmed (Migration._stop_serving) */
#define RECEIVED 3    /* not served before ownership is confirmed (Migration.receive) */

#define UNREPLICATED 0
#define CATCHING_UP 1
#define IN_SYNC 2
#define LOST 3

typedef Server {
    unsigned state : 2;
    unsigned holds : 2;
    unsigned applied : 3;       /* pushes in the vector, a bit each */
    unsigned skipped : 3;       /* pushes that the ledger counts as lost */
    unsigned last : 4;          /* ledger: last push counted, two bits a worker */
    unsigned based : 2;         /* workers in PushLedger.bases */
    unsigned fenced : 2;        /* workers whose incarnation is fenced */
    unsigned leader : 1;        /* a command of the new coordinator was received, while one of the old may come yet */
    unsigned link : 2;          /* of a leader, to its peer */
    unsigned decided : 1;       /* that link is the one that the coordinator decided last */
    unsigned copied : 1;        /* the segment's copy is sent, and its journal attached */
    unsigned stream : 1;        /* of a follower: the stream from its leader is intact */
    unsigned queued : 3;        /* journal records that the follower lacks */
    unsigned mark : 3;          /* of these: those before the mark that all is sent */
    unsigned records : 12       /* three bits each, the newest lowest: push, and 4 for a base */
};
Server server[4];

/* -- coordinator: what is in the registry ----------------------------------------------------------------------------- */

typedef Shard {
    unsigned owner : 3;         /* slot */
    unsigned available : 1;
    unsigned followed : 1;      /* the owner's peer is its follower */
    unsigned whole : 1;         /* it is in sync */
    unsigned promoted : 1       /* the owner is a follower that was in sync */
};
Shard shard[2];
unsigned members : 4;           /* processes of shards that are not declared failed, a bit each */
unsigned at : 1;                /* shard that the placement gives the segment to */
unsigned resharding : 1;
unsigned dead : 2;              /* workers declared failed */
unsigned settled : 2;           /* of these: ledger read */
unsigned final : 4;             /* the ledger that was read, two bits a worker */

/* -- coordinator: what is lost at a failover -------------------------------------------------------------------------- */

unsigned due_recover : 2;       /* commands to be sent, by shard */
unsigned due_link : 2;
unsigned due_confirm : 2;
unsigned due_fence : 2;         /* by worker */
unsigned fencing : 2;           /* of these: fenced, and not read */
unsigned transfer : 2;
#define NOTHING_SENT 0
#define ALL_SENT 1
#define BROKEN 2

#define NO_COMMAND 0            /* the last command of the old leader, if it is still to be received */
#define OLD_ATTACH 1
#define OLD_DETACH 2
#define OLD_OWNERSHIP 3
typedef Command {
    unsigned kind : 2;
    unsigned slot : 2;
    unsigned serves : 1
};
Command old;

/* -- workers, and messages: of the call in progress, and of a stream that the worker has dropped ---------------------- */

#define READY 0
#define WAITING 1
#define DONE 2
#define ENDED 3

typedef Worker {
    unsigned state : 2;
    unsigned seq : 2;           /* of the present push */
    unsigned same : 1;          /* the placement is that of the push before */
    unsigned fresh : 1          /* the placement is that of the push in progress */
};
typedef Message {
    unsigned used : 1;
    unsigned to : 2;
    unsigned seq : 2;
    unsigned base : 1;          /* names its number as base */
    unsigned applied : 1;       /* or a duplicate: waits for the follower */
    unsigned behind : 3         /* records that the follower must have before it is acknowledged */
};
Worker worker[2];
Message now[2], late[2];

/* -- the run --------------------------------------------------------------------------------------------------------- */

unsigned acked : 3;             /* pushes acknowledged to their worker */
unsigned restored : 1;          /* a shard with pushes was restored from the snapshot set: both copies were lost */
unsigned crashes : 2;
unsigned moves : 1;
unsigned takeovers : 1;
unsigned cuts : 2;

hidden byte q_, s_, w_, id_, last_, new_, number_;

#define LAST(p, w) ((server[p].last >> (2 * (w))) & 3)
#define IS_MEMBER(p) ((members & BIT(p)) != 0)
#define ALIVE(p) (server[p].state != GONE)
#define IN_SERVICE(s) (shard[s].available && server[shard[s].owner].state == LEADS)
#define CAN_FOLLOW(s) (IN_SERVICE(s) && !resharding && !due_confirm && !shard[s].followed && !(due_link & BIT(s)) &&      \
    IS_MEMBER(shard[s].owner ^ 1) && ALIVE(shard[s].owner ^ 1))
#define STREAM(p) (server[p ^ 1].state == FOLLOWS && server[p ^ 1].stream)
#define ACTIVE(p) (server[p].link == CATCHING_UP || server[p].link == IN_SYNC)

/* ReplicationLink.wait */
#ifdef PLANT_ACKNOWLEDGE_EARLY
#define REPLICATED(p, records) 1
#else
#define REPLICATED(p, records) ((records) == 0 || server[p].link == CATCHING_UP)
#endif

/* PushLedger.rebase, PushLedger.expect and Segment.apply, at a leader, and again at its follower. Sets new_. */
inline count_push(p, w, number, names_base) {
    last_ = LAST(p, w);
    if
    :: !(server[p].based & BIT(w)) ->
        server[p].based = server[p].based | BIT(w);
        do
        :: names_base && last_ < number - 1 ->
            last_++;
            server[p].skipped = server[p].skipped | BIT(ID(w, last_))
        :: else -> break
        od
    :: else -> skip
    fi;
    assert(number <= last_ + 1);                                            /* no push is missing before it */
    new_ = (number == last_ + 1);
    if
    :: new_ ->
        assert(!(server[p].applied & BIT(ID(w, number))));                  /* at most once */
        server[p].applied = server[p].applied | BIT(ID(w, number));
        last_ = number
    :: else -> skip
    fi;
    server[p].last = (server[p].last & ~(3 << (2 * w))) | (last_ << (2 * w))
}

inline copy_segment(p, q) {
    server[q].applied = server[p].applied;
    server[q].skipped = server[p].skipped;
    server[q].last = server[p].last;
    server[q].based = server[p].based;
    server[q].holds = RECEIVED
}

inline drop_segment(p) {
    server[p].applied = 0;
    server[p].skipped = 0;
    server[p].last = 0;
    server[p].based = 0;
    server[p].holds = ABSENT
}

inline clear_message(message) {
    message.used = 0; message.to = 0; message.seq = 0; message.base = 0; message.applied = 0; message.behind = 0
}

inline set_behind(message, p, records) {
    if
    :: message.used && message.applied && message.to == p -> message.behind = records
    :: else -> skip
    fi
}

/* What waits for the follower of p waits no longer, or until the next command about the link. */
inline set_all_behind(p, records) {
    set_behind(now[0], p, records);
    set_behind(now[1], p, records)
}

/* A follower that was not in sync, or is none any more, has nothing that is used again. */
inline forget_follower(q) {
    if
    :: server[q].state == FOLLOWS -> server[q].state = JOINED; server[q].stream = 0; drop_segment(q)
    :: else -> skip
    fi
}

/* ReplicationLink.begin */
inline begin_link(p, state_then) {
    server[p].link = state_then;
    server[p].copied = 0;
    server[p].queued = 0;
    server[p].mark = 0;
    server[p].records = 0;
    set_all_behind(p, 0)
}

/* ReplicationLink.lose: nothing is acknowledged until the coordinator has recorded it, where the follower was in sync. */
inline lose_link(p) {
    if
#ifndef PLANT_CONTINUE_UNREPLICATED
    :: server[p].link == IN_SYNC -> begin_link(p, LOST); set_all_behind(p, 1)
#endif
    :: server[p].link == LOST -> skip
    :: else -> begin_link(p, UNREPLICATED)
    fi;
    if
    :: !shard[p / 2].whole && !shard[p / 2].promoted -> forget_follower(p ^ 1)
    :: else -> skip
    fi
}

inline drop_message(message, w, p) {
    if
    :: message.used && message.to == p ->
        if
        :: now[w].used && now[w].to == p -> worker[w].state = READY
        :: else -> skip
        fi;
        clear_message(message)
    :: else -> skip
    fi
}

/* The process ends: calls to it break, and their workers look the placement up. */
inline end_process(p) {
    server[p].state = GONE;
    server[p].fenced = 0;
    server[p].leader = 0;
    server[p].decided = 0;
    server[p].stream = 0;
    drop_segment(p);
    begin_link(p, UNREPLICATED);
    drop_message(now[0], 0, p);
    drop_message(now[1], 1, p);
    drop_message(late[0], 0, p);
    drop_message(late[1], 1, p)
}

/* ShardController.shard_for, Shard.push and PushAdmission._check, of one message. */
inline deliver(message, w, in_progress) {
    q_ = message.to;
    if
    :: server[q_].holds != SERVED ->                                        /* Moved: the placement is looked up again */
        if
        :: in_progress -> worker[w].state = READY
        :: else -> skip
        fi;
        clear_message(message)
    :: server[q_].holds == SERVED && (server[q_].fenced & BIT(w)) ->        /* Rejected: the worker ends */
        worker[w].state = ENDED;
        clear_message(message)
    :: else ->
        count_push(q_, w, message.seq, message.base);
        assert(!new_ || !(settled & BIT(w)) || q_ != shard[at].owner || !shard[at].available);
        message.applied = 1;
        if
        :: (new_ || message.base) && ACTIVE(q_) && server[q_].copied ->
            assert(server[q_].queued < 4);
            server[q_].queued = server[q_].queued + 1;
            server[q_].records = (server[q_].records << 3) | (ID(w, message.seq) + 4 * message.base)
        :: else -> skip
        fi;
        message.base = 0;                                                   /* it is used no more */
        message.behind = server[q_].queued + (server[q_].link == LOST)
    fi
}

inline placement_changed() {
    worker[0].same = 0; worker[0].fresh = 0;
    worker[1].same = 0; worker[1].fresh = 0
}

/* ReplicationManager._detach */
inline detach(s) {
    shard[s].followed = 0;
    shard[s].whole = 0;
    due_link = due_link | BIT(s);
    if
    :: shard[s].owner != NONE ->
        server[shard[s].owner].decided = 0;
        if
        :: !ACTIVE(shard[s].owner) -> forget_follower(shard[s].owner ^ 1)
        :: else -> skip
        fi
    :: else -> skip
    fi
}

/* JobMachine._server_lost, Recovery.promote_follower, ReplicationManager.leader_lost, Resharding.shard_lost */
inline declare_failed(p) {
    members = members & ~BIT(p);
    s_ = p / 2;
    if
    :: shard[s_].owner == p ->
        q_ = p ^ 1;
        shard[s_].available = 0;
#ifdef PLANT_PROMOTE_LAGGING
        shard[s_].promoted = shard[s_].followed && IS_MEMBER(q_) && server[q_].holds == RECEIVED;
#else
        shard[s_].promoted = shard[s_].whole && IS_MEMBER(q_) && server[q_].state == FOLLOWS;
#endif
        shard[s_].followed = 0;
        shard[s_].whole = 0;
        server[p].decided = 0;
        due_link = due_link & ~BIT(s_);
        if
        :: transfer -> transfer = NOTHING_SENT; due_confirm = 3            /* both get the old ownership */
        :: else -> skip
        fi;
        if
        :: IS_MEMBER(q_) -> shard[s_].owner = q_; due_recover = due_recover | BIT(s_)
        :: else -> shard[s_].owner = NONE; due_recover = due_recover & ~BIT(s_)
        fi
    :: shard[s_].owner == (p ^ 1) && shard[s_].followed -> detach(s_)
    :: else -> skip
    fi
}

/* Another process joins in the place of one that ended. */
inline join(p) {
    server[p].state = JOINED;
    members = members | BIT(p);
    s_ = p / 2;
    if
    :: shard[s_].owner == NONE -> shard[s_].owner = p; due_recover = due_recover | BIT(s_)
    :: else -> skip
    fi
}

inline received_command(p) {
    server[p].leader = (old.kind != NO_COMMAND)
}

/* Migration.commit, ShardController._commit_segments */
inline commit_ownership(p, owns) {
    lose_link(p);
    if
    :: owns -> assert(server[p].holds != ABSENT); server[p].holds = SERVED
    :: else -> drop_segment(p)
    fi
}

/* ReplicationManager.leader_reported, of a leader whose follower has everything: persisted with the report. */
inline report_follower(p) {
    s_ = p / 2;
    if
    :: shard[s_].owner == p && shard[s_].available && shard[s_].followed && server[p].decided -> shard[s_].whole = 1
    :: else -> skip
    fi
}

/* FollowerSender, begun by a link command; the follower gets an empty assignment first. A leader without the segment has
 * nothing to send, and its follower is in sync at once. */
inline attach(p) {
    server[p ^ 1].state = FOLLOWS;
    server[p ^ 1].stream = 1;
    drop_segment(p ^ 1);
    if
    :: server[p].holds == ABSENT -> begin_link(p, IN_SYNC); report_follower(p)
    :: else -> begin_link(p, CATCHING_UP)
    fi
}

inline execute_link(s) {
    received_command(shard[s].owner);
    server[shard[s].owner].decided = 1;
    if
    :: shard[s].followed -> received_command(shard[s].owner ^ 1); attach(shard[s].owner)
    :: else -> begin_link(shard[s].owner, UNREPLICATED); forget_follower(shard[s].owner ^ 1)
    fi
}

/* A follower that was in sync has every acknowledged push, and every ledger that was read. */
inline check_promoted(p, s) {
    if
    :: at == s ->
        assert((acked & ~(server[p].applied | server[p].skipped)) == 0 || restored);
        assert(!(settled & 1) || LAST(p, 0) == (final & 3) || restored);
        assert(!(settled & 2) || LAST(p, 1) == (final >> 2) || restored)
    :: else -> skip
    fi
}

inline restore_shard(s) {
    if
    :: !shard[s].whole && !shard[s].promoted -> detach(s)
    :: else -> skip
    fi;
    if
    :: !shard[s].available && shard[s].owner != NONE -> due_recover = due_recover | BIT(s)
    :: else -> skip
    fi
}

/* persistence.restore and persistence._reissue_pending_effects */
inline take_over() {
    takeovers++;
    due_recover = 0; due_link = 0; due_confirm = 0; due_fence = dead & ~settled; fencing = 0; transfer = NOTHING_SENT;
    restore_shard(0);
    restore_shard(1);
#ifndef PLANT_FORGET_OWNERSHIP
    if
    :: resharding -> due_confirm = 3
    :: else -> skip
    fi
#endif
}

/* ShardController._check_leader, and the command itself if it passes */
inline receive_old_command() {
    q_ = old.slot;
    if
#ifndef PLANT_OBEY_OLD_LEADER
    :: server[q_].leader || server[q_].state != LEADS -> skip
#else
    :: server[q_].state != LEADS -> skip
#endif
    :: else ->
        if
        :: old.kind == OLD_ATTACH && !server[q_].decided && server[q_ ^ 1].state != LEADS && ALIVE(q_ ^ 1) &&
           !server[q_ ^ 1].leader -> attach(q_)
        :: old.kind == OLD_DETACH && !server[q_].decided -> begin_link(q_, UNREPLICATED); forget_follower(q_ ^ 1)
        :: old.kind == OLD_OWNERSHIP && (!old.serves || server[q_].holds != ABSENT) ->
            commit_ownership(q_, old.serves)
        :: else -> skip
        fi
    fi;
    old.kind = NO_COMMAND; old.slot = 0; old.serves = 0;
    server[0].leader = 0; server[1].leader = 0; server[2].leader = 0; server[3].leader = 0
}

/* One shard serves the segment, with every acknowledged push or its count; a worker that was not fenced is done. */
inline check_end() {
    s_ = shard[at].owner;
    assert(server[s_].holds == SERVED);
    assert(server[shard[1 - at].owner].holds != SERVED);
    assert((acked & ~(server[s_].applied | server[s_].skipped)) == 0 || restored);
    assert(server[s_].skipped == 0 || restored);
    assert(worker[0].state == DONE || (dead & 1));
    assert(worker[1].state == DONE || (dead & 2))
}

#define SETTLED (!due_recover && !due_link && !due_confirm && !due_fence && !transfer && !resharding &&                \
    IN_SERVICE(0) && IN_SERVICE(1) && worker[0].state >= DONE && worker[1].state >= DONE)

init {
    d_step {
        server[0].state = LEADS; server[0].holds = SERVED; server[0].decided = 1;
        server[1].state = JOINED;
        server[2].state = LEADS; server[2].decided = 1;
        server[3].state = JOINED;
        shard[0].owner = 0; shard[0].available = 1;
        shard[1].owner = 2; shard[1].available = 1;
        members = 15;
        worker[0].seq = 1; worker[1].seq = 1
    }
    do
#define w 0
#include "worker.pml"
#undef w
#define w 1
#include "worker.pml"
#undef w
#define p 0
#include "shard_process.pml"
#undef p
#define p 1
#include "shard_process.pml"
#undef p
#define p 2
#include "shard_process.pml"
#undef p
#define p 3
#include "shard_process.pml"
#undef p
#define s 0
#include "shard_commands.pml"
#undef s
#define s 1
#include "shard_commands.pml"
#undef s
    /* Resharding.request: followers are detached first */
    :: d_step { !resharding && moves < MOVES && IN_SERVICE(0) && IN_SERVICE(1) && !due_confirm ->
        moves++; resharding = 1;
        if
        :: shard[0].followed -> detach(0)
        :: else -> skip
        fi;
        if
        :: shard[1].followed -> detach(1)
        :: else -> skip
        fi }
    /* EffectExecutor._migrate: the segment is sent, or its transfer breaks */
    :: d_step { resharding && at == 0 && !transfer && !due_confirm && !due_link && IN_SERVICE(0) && IN_SERVICE(1) ->
        received_command(shard[0].owner); received_command(shard[1].owner);
        copy_segment(shard[0].owner, shard[1].owner);
#ifdef PLANT_MOVE_WITHOUT_LEDGER
        server[shard[1].owner].last = 0;
#endif
        server[shard[0].owner].holds = SENT;
        transfer = ALL_SENT }
    :: d_step { resharding && at == 0 && !transfer && !due_confirm && !due_link && IN_SERVICE(0) && IN_SERVICE(1) &&
                cuts < CUTS ->
        cuts++; received_command(shard[0].owner); server[shard[0].owner].holds = SENT; transfer = BROKEN }
    /* Resharding.segments_migrated, persisted; Resharding.migration_failed */
    :: d_step { transfer == ALL_SENT && IN_SERVICE(0) && IN_SERVICE(1) ->
        transfer = NOTHING_SENT; at = 1; due_confirm = 3; placement_changed() }
    :: d_step { transfer == BROKEN -> transfer = NOTHING_SENT; due_confirm = 3 }
    :: d_step { resharding && at == 1 && !due_confirm && IN_SERVICE(0) && IN_SERVICE(1) -> resharding = 0 }

    /* Another coordinator leads. One command of the old one, due now, may be received yet. */
    :: d_step { takeovers < TAKEOVERS && (due_link & 1) && IN_SERVICE(0) ->
        old.kind = (shard[0].followed -> OLD_ATTACH : OLD_DETACH); old.slot = shard[0].owner; take_over() }
    :: d_step { takeovers < TAKEOVERS && (due_link & 2) && IN_SERVICE(1) ->
        old.kind = (shard[1].followed -> OLD_ATTACH : OLD_DETACH); old.slot = shard[1].owner; take_over() }
    :: d_step { takeovers < TAKEOVERS && CAN_FOLLOW(0) && server[shard[0].owner].holds == ABSENT ->
        old.kind = OLD_ATTACH; old.slot = shard[0].owner; server[shard[0].owner].decided = 0; take_over() }
    :: d_step { takeovers < TAKEOVERS && CAN_FOLLOW(1) && server[shard[1].owner].holds == ABSENT ->
        old.kind = OLD_ATTACH; old.slot = shard[1].owner; server[shard[1].owner].decided = 0; take_over() }
    :: d_step { takeovers < TAKEOVERS && (due_confirm & 1) && IN_SERVICE(0) ->
        old.kind = OLD_OWNERSHIP; old.slot = shard[0].owner; old.serves = (at == 0); take_over() }
    :: d_step { takeovers < TAKEOVERS && (due_confirm & 2) && IN_SERVICE(1) ->
        old.kind = OLD_OWNERSHIP; old.slot = shard[1].owner; old.serves = (at == 1); take_over() }
    :: d_step { takeovers < TAKEOVERS -> take_over() }
    :: d_step { old.kind != NO_COMMAND -> receive_old_command() }

    :: d_step { SETTLED -> check_end() } -> break
    od
}
