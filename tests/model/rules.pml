/* State and rules of the protocol: who may do what, and what it changes. An action has a guard, CAN_..., and an inline
 * with its effect; the comment before them names the code. A search explores all runs of them; an acceptor asks whether
 * a recorded run is one.
 *
 * What the coordinator decides is in the registry in the same step ("persisted before it is sent"); the command is sent
 * in a later step. Actions are enabled only where they change the state, and each cause of repetition has a budget. So
 * every run ends, and one that cannot proceed is an invalid end state: one search shows safety and progress.
 *
 * The state has no numbers that only grow, so that equal situations are equal states:
 *   epoch of a shard       a process leads at most once, so "another epoch" is "another process": its messages are gone
 *   epoch of a link        a bit of the leader: its link is the one that the coordinator decided last
 *   records of a journal   those that the follower lacks, and per message how many of them it waits for
 * A vector is the set of pushes applied to it. The newest snapshot set is the initial one: a shard that is restored from
 * it has lost every push. Not in the model: numbers, the staleness barrier, bundles, exchanges, several segments (they
 * share only the order of the journal), a second snapshot set, the wait for a process to be started again.
 *
 * With FINE (recorded runs) the steps are as fine as those of the programs. Without it, some are one where a failure between them adds
 * nothing that the search must see, and data that is not used again is dropped at once:
 *   a follower is in sync          its leader's report, later, changes the registry
 *   a shard is recovered           and in service once that is in the registry
 *   the placement changes          a worker learns it later, and names its base as the code does
 *   a stream breaks                its messages may be under way still, and be applied; or have nowhere to arrive
 */

#define BIT(i) (1 << (i))
#ifdef UNBOUNDED
#include "unbounded.pml"
#else
#include "bounded.pml"
#endif

/* -- shard processes: slots 2s and 2s + 1 are the places of shard s; the other of p is p ^ 1 ----------------------------
 * With FINE, slot p + PLACES is that of a process that has lost place p to another and has not ended. */

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
    PUSHES(applied);            /* pushes in the vector */
    PUSHES(skipped);            /* pushes that the ledger counts as lost */
    LEDGER(last);               /* ledger: last push counted, of each worker */
    unsigned based : WORKERS;   /* workers in PushLedger.bases */
    unsigned fenced : WORKERS;  /* workers whose incarnation is fenced */
    unsigned leader : 1;        /* a command of the new coordinator was received, while one of the old may come yet */
    unsigned link : 2;          /* of a leader, to its peer */
    unsigned decided : 1;       /* that link is the one that the coordinator decided last */
    unsigned copied : 1;        /* the segment's copy is sent, and its journal attached */
#ifdef FINE
    unsigned confirmed : 1;     /* the follower had everything, by which the coordinator may learn that it is in sync */
    unsigned replaced : 1;      /* by a shard without its latest pushes: what it acknowledges yet is counted as lost */
#endif
    unsigned stream : 1;        /* of a follower: the stream from its leader is intact */
    LENGTH(queued);             /* journal records that the follower lacks */
    LENGTH(mark);               /* of these: those before the mark that all is sent */
    JOURNAL
};
Server server[SLOTS];
#ifdef FINE
byte peer[SLOTS];               /* of each process: that at the other end of its latest stream; itself: none */
#endif

/* -- coordinator: what is in the registry ----------------------------------------------------------------------------- */

typedef Shard {
    unsigned owner : OWNER_BITS; /* slot */
    unsigned available : 1;
#ifdef FINE
    unsigned placed : 1;        /* it is in the placement: one that is not has no successor when it fails */
    unsigned linked : 1;        /* it has had a link: a new coordinator ends none of a shard that has had none */
#endif
    unsigned followed : 1;      /* the owner's peer is its follower */
    unsigned whole : 1;         /* it is in sync */
    unsigned promoted : 1       /* the owner is a follower that was in sync */
};
Shard shard[SHARDS];
unsigned members : SLOTS;       /* processes of shards that are not declared failed, a bit each */
unsigned at : SHARD_BITS;       /* shard that the placement gives the segment to */
unsigned resharding : 1;
unsigned dead : WORKERS;        /* workers declared failed */
unsigned settled : WORKERS;     /* of these: ledger read */
LEDGER(final);                  /* the ledger that was read */
#ifdef FINE
bit has_set;                    /* there is a snapshot set: before, no follower is promoted with its contents */
#endif

/* -- coordinator: what is lost at a failover -------------------------------------------------------------------------- */

unsigned due_recover : SHARDS;  /* commands to be sent, by shard */
unsigned due_link : SHARDS;
unsigned due_confirm : SHARDS;
unsigned due_fence : WORKERS;   /* by worker */
unsigned fencing : WORKERS;     /* of these: fenced, and not read */
unsigned transfer : 2;
#ifdef FINE
unsigned target : SHARD_BITS;   /* of the transfer */
#endif
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
    NUMBER(seq);                /* of the present push */
    unsigned same : 1;          /* the placement is that of the push before */
#ifdef FINE
    unsigned repeats : 1;       /* the push in progress was sent before */
#endif
    unsigned fresh : 1          /* the placement is that of the push in progress */
};
typedef Message {
    unsigned used : 1;
    unsigned to : SLOT_BITS;     /* slot */
    NUMBER(seq);
    unsigned base : 1;          /* names its number as base */
    unsigned applied : 1;       /* or a duplicate: waits for the follower */
    LENGTH(behind)              /* records that the follower must have before it is acknowledged */
};
Worker worker[WORKERS];
Message now[WORKERS], late[WORKERS];

/* -- the run --------------------------------------------------------------------------------------------------------- */

PUSHES(acked);                  /* pushes acknowledged to their worker */
unsigned restored : 1;          /* a shard with pushes was restored from the snapshot set: both copies were lost */

hidden short q_, s_, w_, id_, last_, new_, number_, base_, i_;

#define IS_MEMBER(p) ((members & BIT(p)) != 0)
#define ALIVE(p) (server[p].state != GONE)
#define IN_SERVICE(s) (shard[s].available && server[shard[s].owner].state == LEADS)
#define ACTIVE(p) (server[p].link == CATCHING_UP || server[p].link == IN_SYNC)
#ifndef FINE
#define PEER(p) (p ^ 1)
#define STREAM(p) (server[p ^ 1].state == FOLLOWS && server[p ^ 1].stream)
#define QUEUED(p) server[p].queued
#define SENDS(p) STREAM(p)
#define SENDS_STILL(p) ACTIVE(p)
#define IN_TRANSFER(s) transfer
#define CAN_FOLLOW(s) (IN_SERVICE(s) && !resharding && !due_confirm && !shard[s].followed && !(due_link & BIT(s)) &&  \
    IS_MEMBER(shard[s].owner ^ 1) && ALIVE(shard[s].owner ^ 1))
#define IS_PROMOTED(s, q) (shard[s].whole && IS_MEMBER(q) && server[q].state == FOLLOWS)
#define IS_SHARD(s, leads) 1
#define NEVER_FOLLOWED(p) (!shard[p / 2].whole && !shard[p / 2].promoted)
#define IS_OPEN(s) (!shard[s].whole && !shard[s].promoted)
#else
#define PEER(p) peer[p]
#define STREAM(p) (server[peer[p]].state == FOLLOWS && server[peer[p]].stream && peer[peer[p]] == (p))
#define QUEUED(p) (ACTIVE(p) -> server[p].queued : 0)
#define SENDS(p) 1
#define SENDS_STILL(p) 1
#define IN_TRANSFER(s) (transfer && ((s) == at || (s) == target))
#define CAN_FOLLOW(s) (shard[s].available && !resharding && !shard[s].followed && IS_MEMBER(shard[s].owner ^ 1))
#define IS_PROMOTED(s, q) (shard[s].whole && IS_MEMBER(q) && has_set)
#define IS_SHARD(s, leads) (leads || shard[s].placed)
#define NEVER_FOLLOWED(p) 0
#define IS_OPEN(s) (shard[s].linked && !shard[s].whole && !shard[s].promoted)
#endif

/* ReplicationLink.wait */
#ifdef PLANT_ACKNOWLEDGE_EARLY
#define REPLICATED(p, records) 1
#else
#define REPLICATED(p, records) ((records) == 0 || server[p].link == CATCHING_UP)
#endif

/* PushLedger.rebase, PushLedger.expect and Segment.apply, at a leader, and again at its follower. Sets new_. */
inline count_push(p, w, number, names_base) {
    last_ = LAST(server[p].last, w);
    if
    :: !(server[p].based & BIT(w)) ->
        server[p].based = server[p].based | BIT(w);
        do
        :: names_base && last_ < number - 1 ->
            last_++;
            ADD(server[p].skipped, w, last_)
        :: else -> break
        od
    :: else -> skip
    fi;
    assert(number <= last_ + 1);                                            /* no push is missing before it */
    new_ = (number == last_ + 1);
    if
    :: new_ ->
        assert(!HAS(server[p].applied, w, number));                         /* at most once */
        ADD(server[p].applied, w, number);
        last_ = number
    :: else -> skip
    fi;
    SET_LAST(server[p].last, w, last_)
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
    set_behind(now[0], p, records)
#if WORKERS > 1
    ;
    set_behind(now[1], p, records)
#endif
}

/* A follower that was not in sync, or is none any more, has nothing that is used again. */
inline forget_follower(q) {
#ifndef FINE
    if
    :: server[q].state == FOLLOWS -> server[q].state = JOINED; server[q].stream = 0; drop_segment(q)
    :: else -> skip
    fi
#else
    skip
#endif
}

inline clear_journal(p) {
    server[p].queued = 0;
#ifdef UNBOUNDED
    i_ = 0;
    do
    :: i_ < MOST_QUEUED && server[p].records[i_] -> server[p].records[i_] = 0; i_++
    :: else -> break
    od
#else
    server[p].records = 0
#endif
}

/* ReplicationLink.begin */
inline begin_link(p, state_then) {
    server[p].link = state_then;
    server[p].copied = 0;
    server[p].mark = 0;
#ifndef FINE
    clear_journal(p);
#endif
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
    :: NEVER_FOLLOWED(p) -> forget_follower(p ^ 1)
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
#if WORKERS > 1
    drop_message(now[1], 1, p);
#endif
    drop_message(late[0], 0, p)
#if WORKERS > 1
    ;
    drop_message(late[1], 1, p)
#endif
}

/* A duplicate is recorded where it names a base; that of an exchange is not: Shard.exchange. */
#ifndef EXCHANGES
#ifdef UNBOUNDED
bit exchanges;
#define EXCHANGES exchanges
#else
#define EXCHANGES 0
#endif
#endif

/* ShardController.shard_for, Shard.push and PushAdmission._check, of one message. */
#define REFUSES(p, w) (server[p].holds == SERVED && (server[p].fenced & BIT(w)))
inline deliver(message, w, in_progress) {
    q_ = message.to;
    if
    :: server[q_].holds != SERVED ->                                        /* Moved: the placement is looked up again */
        if
        :: in_progress -> worker[w].state = READY
        :: else -> skip
        fi;
        clear_message(message)
    :: REFUSES(q_, w) ->                                                    /* Rejected: the worker ends */
        worker[w].state = ENDED;
        clear_message(message)
    :: else ->
        count_push(q_, w, message.seq, message.base);
        assert(!new_ || !(settled & BIT(w)) || q_ != shard[at].owner || !shard[at].available);
        message.applied = 1;
        if
        :: (new_ || (message.base && !EXCHANGES)) && ACTIVE(q_) && server[q_].copied ->
            assert(server[q_].queued < MOST_QUEUED);
            APPEND(q_, w, message.seq, message.base)
        :: else -> skip
        fi;
        message.base = 0;                                                   /* it is used no more */
        message.behind = QUEUED(q_) + (server[q_].link == LOST)
    fi
}

/* ShardCalls._go_on */
inline learn_placement(w) {
    worker[w].same = 0; worker[w].fresh = 0
}

inline placement_changed() {
#ifndef FINE
    learn_placement(0);
    learn_placement(1)
#else
    skip
#endif
}

/* ReplicationManager._detach */
inline detach(s) {
#ifdef FINE
    shard[s].linked = 1;
#endif
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
        shard[s_].promoted = IS_PROMOTED(s_, q_);
#endif
#ifdef FINE
        server[p].replaced = !shard[s_].promoted;
#endif
        shard[s_].followed = 0;
        shard[s_].whole = 0;
        server[p].decided = 0;
        due_link = due_link & ~BIT(s_);
        if
        :: IN_TRANSFER(s_) -> transfer = NOTHING_SENT; due_confirm = BIT(SHARDS) - 1   /* they get the old ownership */
        :: else -> skip
        fi;
        if
        :: IS_MEMBER(q_) && IS_SHARD(s_, 0) -> shard[s_].owner = q_; due_recover = due_recover | BIT(s_)
        :: else -> shard[s_].owner = NONE; due_recover = due_recover & ~BIT(s_)
        fi
    :: shard[s_].owner == (p ^ 1) && shard[s_].followed -> detach(s_)
    :: else -> skip
    fi
}

/* Another process joins in the place of one that ended. */
inline join(p, leads) {
    server[p].state = JOINED;
#ifdef FINE
    server[p].replaced = 0;
#endif
    members = members | BIT(p);
    s_ = p / 2;
    if
    :: shard[s_].owner == NONE && IS_SHARD(s_, leads) -> shard[s_].owner = p; due_recover = due_recover | BIT(s_)
    :: else -> skip
    fi
}

inline received_command(p) {
#ifndef FINE
    server[p].leader = (old.kind != NO_COMMAND)
#else
    skip                                                                    /* a step of its own */
#endif
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
#define MAY_BE_WHOLE(s, p) (shard[s].owner == p && shard[s].available && shard[s].followed && server[p].decided)
inline report_follower(p) {
#ifdef FINE
    server[p].confirmed = 1
#else
    s_ = p / 2;
    if
    :: MAY_BE_WHOLE(s_, p) -> shard[s_].whole = 1
    :: else -> skip
    fi
#endif
}

/* FollowerSender, begun by a link command; the follower gets an empty assignment first. A leader without the segment has
 * nothing to send, and its follower is in sync at once. */
inline attach(p, q, reaches) {
    if
    :: reaches ->
        server[q].state = FOLLOWS;
        server[q].stream = 1;
        drop_segment(q)
    :: else -> skip
    fi;
#ifdef FINE
    if
    :: reaches -> peer[p] = q; peer[q] = p
    :: else -> peer[p] = p
    fi;
    clear_journal(p);
    server[p].confirmed = 0;
#endif
    if
    :: server[p].holds == ABSENT -> begin_link(p, IN_SYNC); report_follower(p)
    :: else -> begin_link(p, CATCHING_UP)
    fi
}

inline end_link(p) {
    begin_link(p, UNREPLICATED);
#ifdef FINE
    server[p].confirmed = 0;
#endif
    forget_follower(p ^ 1)
}

inline execute_link(s) {
    received_command(shard[s].owner);
    server[shard[s].owner].decided = 1;
    if
    :: shard[s].followed -> received_command(shard[s].owner ^ 1); attach(shard[s].owner, shard[s].owner ^ 1, 1)
    :: else -> end_link(shard[s].owner)
    fi
}

/* A follower that was in sync has every acknowledged push, and every ledger that was read. */
#define SETTLED_AS_READ(p, w) (!(settled & BIT(w)) || LAST(server[p].last, w) == LAST(final, w) || restored)
inline check_promoted(p, s) {
    if
    :: at == s ->
        assert(COVERED(acked, server[p].applied, server[p].skipped) || restored);
        assert(SETTLED_AS_READ(p, 0))
#if WORKERS > 1
        ;
        assert(SETTLED_AS_READ(p, 1))
#endif
    :: else -> skip
    fi
}

inline restore_shard(s) {
    if
    :: IS_OPEN(s) -> detach(s)
    :: else -> skip
    fi;
    if
    :: !shard[s].available && shard[s].owner != NONE -> due_recover = due_recover | BIT(s)
    :: else -> skip
    fi
}

/* persistence.restore and persistence._reissue_pending_effects */
inline take_over() {
    due_recover = 0; due_link = 0; due_confirm = 0; due_fence = dead & ~settled; fencing = 0; transfer = NOTHING_SENT;
    restore_shard(0);
    restore_shard(1);
#if SHARDS > 2
    restore_shard(2);
#endif
#ifndef PLANT_FORGET_OWNERSHIP
    if
    :: resharding -> due_confirm = BIT(SHARDS) - 1
    :: else -> skip
    fi
#endif
}

/* -- actions of a worker ---------------------------------------------------------------------------------------------- */

#ifdef PLANT_FORGET_BASE
#define NAMES_BASE(w) 0
#else
#define NAMES_BASE(w) (!worker[w].same && worker[w].seq > 1)
#endif

/* ShardCalls._begin */
inline begin_push(w, p) {
    now[w].used = 1; now[w].to = p; now[w].seq = worker[w].seq;
    now[w].base = NAMES_BASE(w);
#ifdef FINE
    if
    :: !worker[w].repeats -> worker[w].fresh = 1
    :: else -> skip
    fi;
    worker[w].repeats = 1;
#else
    worker[w].same = 0; worker[w].fresh = worker[w].seq < COUNT(w);
#endif
    worker[w].state = WAITING
}

/* PushCall.handle_reply, of a reply that is sent once the follower has the push: PushHandler._replies */
#define CAN_ACKNOWLEDGE(w) (now[w].used && now[w].applied && REPLICATED(now[w].to, now[w].behind))
inline acknowledge(w) {
#ifdef FINE
    if
    :: server[now[w].to].replaced -> skip
    :: else -> ADD(acked, w, now[w].seq)
    fi;
#else
    ADD(acked, w, now[w].seq);
#endif
    clear_message(now[w]);
    worker[w].same = worker[w].fresh; worker[w].fresh = 0;
#ifdef FINE
    worker[w].repeats = 0;
#endif
    if
#ifndef UNBOUNDED
    :: worker[w].seq == COUNT(w) -> worker[w].state = DONE
#endif
    :: else -> worker[w].seq = worker[w].seq + 1; worker[w].state = READY
    fi
}

inline break_call(w) {
    clear_message(now[w]); worker[w].state = READY
}

/* EffectExecutor._fence: the shard refuses the worker's pushes; once that is replicated, its ledger is read. */
inline fence(p, w) {
#ifndef PLANT_SETTLE_UNFENCED
    server[p].fenced = server[p].fenced | BIT(w)
#else
    skip
#endif
}

#define FENCE_DONE(p) (REPLICATED(p, QUEUED(p)) && server[p].link != LOST)
inline settle(w, p) {
    due_fence = due_fence & ~BIT(w);
    fencing = fencing & ~BIT(w);
    settled = settled | BIT(w);
    SET_LAST(final, w, LAST(server[p].last, w))
}

/* -- actions of a shard process --------------------------------------------------------------------------------------- */

/* FollowerMessages: the copy of the segment, then records, then the mark that all is sent. */
#define CAN_SEND_COPY(p) (server[p].link == CATCHING_UP && !server[p].copied && SENDS(p))
inline send_copy(p) {
    server[p].copied = 1;
    if
    :: STREAM(p) -> copy_segment(p, PEER(p))
    :: else -> skip
    fi
}

#define CAN_SEND_MARK(p) (server[p].link == CATCHING_UP && server[p].copied && SENDS(p))
inline send_mark(p) {
    server[p].link = IN_SYNC; server[p].mark = server[p].queued;
    if
    :: !server[p].mark -> report_follower(p)
    :: else -> skip
    fi
}

inline record_replicated(message, p) {
    if
    :: message.used && message.applied && message.to == p && message.behind -> message.behind = message.behind - 1
    :: else -> skip
    fi
}

/* apply(shard, segment, record) at the follower, and ReplicationLink.acknowledged */
#define CAN_REPLICATE(p) (SENDS_STILL(p) && server[p].queued && STREAM(p))
inline replicate(p) {
    TAKE_OLDEST(p);
    count_push(PEER(p), w_, number_, base_);
    if
    :: ACTIVE(p) ->
        record_replicated(now[0], p);
#if WORKERS > 1
        record_replicated(now[1], p);
#endif
        if
        :: server[p].mark ->
            server[p].mark = server[p].mark - 1;
            if
            :: !server[p].mark -> report_follower(p)
            :: else -> skip
            fi
        :: else -> skip
        fi
    :: else -> skip
    fi
}

/* -- actions of the coordinator --------------------------------------------------------------------------------------- */

/* ReplicationManager.advance */
inline decide_follower(s) {
#ifdef FINE
    shard[s].linked = 1;
#endif
    shard[s].followed = 1;
    if
#ifndef FINE
    :: server[shard[s].owner].holds == ABSENT -> execute_link(s)        /* nothing that another step could see */
#endif
    :: else -> server[shard[s].owner].decided = 0; due_link = due_link | BIT(s)
    fi
}

/* ShardClient.recover, at the process that becomes the shard; content: of the snapshot set, where it is not promoted;
 * fenced_workers: those that were declared failed when it was decided */
#define CAN_RECOVER(s)                                                                                                \
    ((due_recover & BIT(s)) && shard[s].owner != NONE && ALIVE(shard[s].owner) && IS_MEMBER(shard[s].owner))
inline recover(s, content, fenced_workers) {
    q_ = shard[s].owner;
    due_recover = due_recover & ~BIT(s);
    received_command(q_);
    server[q_].state = LEADS;
    server[q_].stream = 0;
    server[q_].decided = 1;
    server[q_].fenced = server[q_].fenced | fenced_workers;
    if
    :: shard[s].promoted ->
        server[q_].based = 0;
        check_promoted(q_, s);
        commit_ownership(q_, at == s)
    :: else ->
        drop_segment(q_);
        if
        :: at == s -> server[q_].holds = SERVED; restore_content(q_, content)
        :: else -> skip
        fi
    fi;
    begin_link(q_, UNREPLICATED)
}

inline restore_content(p, content) {
#ifdef UNBOUNDED
    server[p].applied = content;
    server[p].last = content;
    acked = (acked > content -> content : acked);                           /* the rest is counted as lost */
    final = (final > content -> content : final)
#else
    restored = 1
#endif
}

/* Recovery.shard_recovered, persisted */
inline put_in_service(s) {
#ifdef FINE
    shard[s].placed = 1;
    due_link = due_link & ~BIT(s);                                          /* a command to one that is not is dropped */
#endif
    shard[s].available = 1; shard[s].promoted = 0; placement_changed()
}

/* Resharding.request: followers are detached first */
inline detach_if_followed(s) {
    if
    :: shard[s].followed -> detach(s)
    :: else -> skip
    fi
}

inline begin_resharding() {
    resharding = 1;
    detach_if_followed(0);
    detach_if_followed(1)
#if SHARDS > 2
    ;
    detach_if_followed(2)
#endif
}

/* EffectExecutor._migrate: the segment is sent, or its transfer breaks */
#define CAN_SEND(from, to) (resharding && !transfer && IN_SERVICE(from) && IN_SERVICE(to))
inline send_segment(from, to) {
    received_command(shard[from].owner); received_command(shard[to].owner);
    copy_segment(shard[from].owner, shard[to].owner);
#ifdef PLANT_MOVE_WITHOUT_LEDGER
    server[shard[to].owner].last = 0;
#endif
    server[shard[from].owner].holds = SENT;
#ifdef FINE
    target = to;
#endif
    transfer = ALL_SENT
}

inline break_transfer(from) {
    received_command(shard[from].owner); server[shard[from].owner].holds = SENT; transfer = BROKEN
}

/* Resharding.segments_migrated, persisted */
#define CAN_COMMIT(to) (transfer == ALL_SENT && server[shard[to].owner].holds == RECEIVED)
inline commit_migration(from, to) {
    transfer = NOTHING_SENT; at = to; due_confirm = due_confirm | BIT(from) | BIT(to); placement_changed()
}

/* ShardClient.set_ownership */
inline confirm_ownership(s) {
    due_confirm = due_confirm & ~BIT(s);
#ifdef FINE
    if
    :: IN_TRANSFER(s) -> transfer = NOTHING_SENT
    :: else -> skip
    fi;
#endif
    received_command(shard[s].owner);
    commit_ownership(shard[s].owner, at == s)
}
