/* Acceptor: is a recorded run of the programs a run of the rules?
 *
 * A trace is what happened to one segment and one worker's pushes to it, an event a line: kind, slot or shard, number,
 * and two flags (`kinds.pml` has the kinds). It is read from standard input at run time: one verifier serves all traces.
 * Each event is an action of `rules.pml`, which must be enabled, and have the outcome that was recorded. The trace is
 * accepted where its last event is reached.
 */
#define FINE
#define UNBOUNDED
#include "rules.pml"
#include "kinds.pml"

c_code {
    struct event { int kind, slot, number, flag, other; };
    static struct event *events;
    static int count, furthest, consumed;

    static void report(void)
    {
        if (consumed) printf("accepted %d\n", count - 1);
        else printf("rejected %d\n", furthest);
    }

    static void read_events(void)
    {
        int most = 1024;
        struct event one;
        events = malloc(most * sizeof one);
        while (scanf("%d %d %d %d %d", &one.kind, &one.slot, &one.number, &one.flag, &one.other) == 5) {
            if (count == most) events = realloc(events, (most *= 2) * sizeof one);
            events[count++] = one;
        }
        atexit(report);
    }
}

int position;
byte kind;
byte slot;                      /* or the number of a shard */
short number;
bit flag, other;

short called[SLOTS];            /* the highest push that was sent to a process */

hidden byte p_;

inline fetch() {
    c_code {
        if (now.position == count) { printf("the trace has no end\n"); exit(2); }
        furthest = now.position;
        now.kind = events[now.position].kind;
        now.slot = events[now.position].slot;
        now.number = events[now.position].number;
        now.flag = events[now.position].flag;
        now.other = events[now.position].other;
    }
}
inline next() {
    position++;
    fetch()
}

inline forget_takeover() {
    p_ = 0;
    do
    :: p_ < SLOTS -> server[p_].leader = 0; p_++
    :: else -> break
    od
}

/* The process at p goes on without a place, with its streams and the call to it; one that did so before is forgotten. */
inline lose_place(p) {
    end_process(p + PLACES);
    c_code { now.server[now.slot + PLACES] = now.server[now.slot]; };
    peer[p + PLACES] = peer[p];
    q_ = 0;
    do
    :: q_ < SLOTS ->
        if
        :: peer[q_] == p -> peer[q_] = p + PLACES
        :: q_ != p + PLACES && peer[q_] == p + PLACES -> peer[q_] = q_
        :: else -> skip
        fi;
        q_++
    :: else -> break
    od;
    peer[p] = p;
    if
    :: now[0].used && now[0].to == p -> now[0].to = p + PLACES
    :: else -> skip
    fi;
    called[p + PLACES] = called[p];
    end_process(p);
    clear_journal(p)
}

#define OWNER(s) shard[s].owner
#define IS_OWNER (slot < PLACES && slot == OWNER(slot / 2))
/* The ledger is read at the owner, or at the one that was declared failed, while no other is in its place. */
#define IS_READ (slot == OWNER(at) || (slot % PLACES / 2 == at && !shard[at].available && server[slot].state == LEADS))
/* A shard that is restored from a set, and not in service yet, may be restored again. */
#define IS_REPEATED                                                                                                   \
    (!flag && !shard[slot].available && OWNER(slot) != NONE && server[OWNER(slot)].state == LEADS)
/* Without a place, a process acknowledges what is counted as lost, or what the shard in its place has. */
#define MAY_BE_HEARD                                                                                                  \
    (slot < PLACES || server[slot].replaced || (OWNER(at) != NONE && HAS(server[OWNER(at)].applied, 0, number)))
/* Its follower is detached: by the newest command about its link, or already by the same one of the coordinator before. */
#define IS_DETACHED(s) (!(due_link & BIT(s)) || server[OWNER(s)].link == UNREPLICATED)
/* The leader may have ended since it sent the report. */
#define MAY_BE_REPORTED(s)                                                                                            \
    (MAY_BE_WHOLE(s, OWNER(s)) ||                                                                                     \
     (OWNER(s) != NONE && shard[s].available && shard[s].followed && server[OWNER(s)].state == GONE))
#define IS_CALL (now[0].used && !now[0].applied && now[0].to == slot && now[0].seq == number && now[0].base == flag)

init {
    d_step {
        c_code { read_events(); }
        worker[0].seq = 1;
        p_ = 0;
        do
        :: p_ < SHARDS -> shard[p_].owner = NONE; p_++
        :: else -> break
        od;
        fetch()
    }
    do
    /* -- the worker -- */
    :: d_step { kind == LEARN -> learn_placement(0); next() }
    :: d_step { kind == BEGIN && worker[0].state == READY && number == worker[0].seq && flag == NAMES_BASE(0) ->
        begin_push(0, slot);
        if
        :: slot == NONE -> clear_message(now[0])               /* to a process that has ended */
        :: else -> called[slot] = number
        fi;
        next() }
    :: d_step { kind == BREAK -> break_call(0); next() }
    :: d_step { kind == ACKNOWLEDGE && now[0].to == slot && now[0].seq == number && CAN_ACKNOWLEDGE(0) &&
                MAY_BE_HEARD ->
        acknowledge(0); next() }

    /* -- a shard's process -- */
    :: d_step { kind == APPLY && server[slot].holds == SERVED && !REFUSES(slot, 0) && number <= called[slot] ->
        if
        :: IS_CALL -> deliver(now[0], 0, 1)
        :: else ->                                              /* of a stream that the worker has dropped */
            late[0].used = 1; late[0].to = slot; late[0].seq = number; late[0].base = flag;
            deliver(late[0], 0, 0);
            clear_message(late[0])
        fi;
        assert(new_ == other);
        next() }
    :: d_step { kind == COPY && CAN_SEND_COPY(slot) && number == LAST(server[slot].last, 0) -> send_copy(slot); next() }
    :: d_step { kind == COPY && !ACTIVE(slot) -> next() }       /* into a stream that has just ended */
    :: d_step { kind == MARK && CAN_SEND_MARK(slot) -> send_mark(slot); next() }
    :: d_step { kind == MARK && server[slot].holds == ABSENT && server[slot].link == IN_SYNC -> next() }
    :: d_step { kind == RECORD && CAN_REPLICATE(peer[slot]) && peer[peer[slot]] == slot ->
        p_ = peer[slot];
        replicate(p_);
        assert(number == number_ && flag == base_ && other == new_);
        next() }
    :: d_step { kind == LOSE && ACTIVE(slot) -> lose_link(slot); next() }
    :: d_step { kind == END ->
        server[slot].confirmed = server[slot].confirmed && server[slot].decided;  /* its report may be under way */
        end_process(slot); called[slot] = 0; next() }

    /* -- commands, at a shard's process -- */
    :: d_step { kind == COMMAND && (flag || !server[slot].leader) -> server[slot].leader = flag; next() }
    :: d_step { kind == LINK && !server[slot].decided && (!other || (IS_OWNER &&
                flag == shard[slot / 2].followed && (due_link & BIT(slot / 2)))) ->
        server[slot].decided = other;
        due_link = (other -> due_link & ~BIT(slot / 2) : due_link);
        if
        :: flag -> attach(slot, number, (number != NONE && ALIVE(number) && server[number].state != LEADS))
        :: else -> end_link(slot)
        fi;
        next() }
    :: d_step { kind == RECOVER && (CAN_RECOVER(slot) || IS_REPEATED) && flag == shard[slot].promoted &&
                (!flag || at != slot || number == LAST(server[OWNER(slot)].last, 0)) ->
        recover(slot, number, other);
        next() }
    :: d_step { kind == SEND && slot == OWNER(at) && CAN_SEND(at, number) && IS_DETACHED(at) &&
                IS_DETACHED(number) ->
        if
        :: flag -> send_segment(at, number)
        :: else -> break_transfer(at); transfer = NOTHING_SENT
        fi;
        next() }
    :: d_step { kind == SEND && !IS_OWNER && server[slot].state == LEADS && server[slot].holds != ABSENT ->
        server[slot].holds = SENT;                              /* by a late command: nobody takes it */
        next() }
    :: d_step { kind == SERVE && IS_OWNER && flag == (at == slot / 2) ->
        p_ = slot / 2;
        confirm_ownership(p_);
        next() }
    :: d_step { kind == SERVE && !IS_OWNER -> commit_ownership(slot, flag); next() }
    :: d_step { kind == FENCE && (dead & 1) -> fence(slot, 0); next() }
    :: d_step { kind == READ && IS_READ && (server[slot].fenced & 1) && FENCE_DONE(slot) &&
                number == LAST(server[slot].last, 0) ->
        settle(0, slot);
        next() }
    :: d_step { kind == READ && !IS_READ -> next() }

    /* -- what the coordinator decides, in the registry -- */
    :: d_step { kind == JOIN && !IS_MEMBER(slot) ->
        if
        :: ALIVE(slot) -> lose_place(slot)
        :: else -> skip
        fi;
        called[slot] = 0;
        join(slot, flag);
        assert(flag == (OWNER(slot / 2) == slot));
        next() }
    :: d_step { kind == FAIL && IS_MEMBER(slot) ->
        p_ = (OWNER(slot / 2) == slot);
        declare_failed(slot);
        assert(!p_ || flag == shard[slot / 2].promoted);
        next() }
    :: d_step { kind == FOLLOW && CAN_FOLLOW(slot) -> decide_follower(slot); next() }
    :: d_step { kind == WHOLE && MAY_BE_REPORTED(slot) && server[OWNER(slot)].confirmed ->
        shard[slot].whole = 1; next() }
    :: d_step { kind == DETACH ->
        if
        :: OWNER(slot) != NONE && server[OWNER(slot)].state == GONE -> server[OWNER(slot)].confirmed = 0
        :: else -> skip
        fi;
        detach(slot); next() }
    :: d_step { kind == PLACE && !shard[slot].available && OWNER(slot) != NONE &&
                (server[OWNER(slot)].state == LEADS || !ALIVE(OWNER(slot))) &&
                (at != slot || !(settled & 1) || (server[OWNER(slot)].fenced & 1) || !ALIVE(OWNER(slot))) ->
        put_in_service(slot); next() }
    :: d_step { kind == REMOVE ->                               /* it has no place until it is admitted again */
        shard[slot].available = 0; shard[slot].placed = 0;
        due_recover = (OWNER(slot) != NONE -> due_recover | BIT(slot) : due_recover);
        next() }
    :: d_step { kind == RESHARD ->

        if
        :: flag -> begin_resharding()
        :: else -> resharding = 0
        fi;
        next() }
    :: d_step { kind == MOVE && target == slot && CAN_COMMIT(slot) -> commit_migration(at, slot); next() }
    :: d_step { kind == DEAD -> dead = 1; due_fence = 1; next() }
    :: d_step { kind == SETTLE && (settled & 1) -> next() }
    :: d_step { kind == TAKE_OVER -> take_over(); forget_takeover(); next() }

    :: d_step { kind == START -> at = slot; exchanges = flag; has_set = other; next() }
    :: d_step { kind == SAVED -> has_set = 1; next() }
    :: d_step { kind == STOP ->
        if
        :: OWNER(at) != NONE && shard[at].available && server[OWNER(at)].holds == SERVED ->
            assert(COVERED(acked, server[OWNER(at)].applied, server[OWNER(at)].skipped))
        :: else -> skip
        fi;
        c_code { consumed = 1; exit(0); } }
    od
}
