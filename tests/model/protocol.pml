/* Exactly-once pushes: ledger, chain of two, shard incarnations, fencing, a migrating segment, coordinator failover.
 *
 * Every run of the rules in `rules.pml`, with two shards and a follower each; one segment, which migrates from shard 0 to
 * shard 1; two workers that push to it (FIRST + 1 pushes); CRASHES failures, each of which ends a process or only
 * declares it failed while it continues; TAKEOVERS failovers, after which the old leader's last command may still be
 * received; CUTS broken connections. An action is one atomic step of one process.
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

#include "rules.pml"

unsigned crashes : 2;
unsigned moves : 1;
unsigned takeovers : 1;
unsigned cuts : 2;

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
           !server[q_ ^ 1].leader -> attach(q_, q_ ^ 1, 1)
        :: old.kind == OLD_DETACH && !server[q_].decided -> end_link(q_)
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
    assert(COVERED(acked, server[s_].applied, server[s_].skipped) || restored);
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
    :: d_step { !resharding && moves < MOVES && IN_SERVICE(0) && IN_SERVICE(1) && !due_confirm ->
        moves++; begin_resharding() }
    :: d_step { at == 0 && CAN_SEND(0, 1) && !due_confirm && !due_link -> send_segment(0, 1) }
    :: d_step { at == 0 && CAN_SEND(0, 1) && !due_confirm && !due_link && cuts < CUTS -> cuts++; break_transfer(0) }
    :: d_step { IN_SERVICE(0) && IN_SERVICE(1) && CAN_COMMIT(1) -> commit_migration(0, 1) }
    /* Resharding.migration_failed */
    :: d_step { transfer == BROKEN -> transfer = NOTHING_SENT; due_confirm = 3 }
    :: d_step { resharding && at == 1 && !due_confirm && IN_SERVICE(0) && IN_SERVICE(1) -> resharding = 0 }

    /* Another coordinator leads. One command of the old one, due now, may be received yet. */
    :: d_step { takeovers < TAKEOVERS && (due_link & 1) && IN_SERVICE(0) ->
        old.kind = (shard[0].followed -> OLD_ATTACH : OLD_DETACH); old.slot = shard[0].owner; takeovers++; take_over() }
    :: d_step { takeovers < TAKEOVERS && (due_link & 2) && IN_SERVICE(1) ->
        old.kind = (shard[1].followed -> OLD_ATTACH : OLD_DETACH); old.slot = shard[1].owner; takeovers++; take_over() }
    :: d_step { takeovers < TAKEOVERS && CAN_FOLLOW(0) && server[shard[0].owner].holds == ABSENT ->
        old.kind = OLD_ATTACH; old.slot = shard[0].owner; server[shard[0].owner].decided = 0; takeovers++; take_over() }
    :: d_step { takeovers < TAKEOVERS && CAN_FOLLOW(1) && server[shard[1].owner].holds == ABSENT ->
        old.kind = OLD_ATTACH; old.slot = shard[1].owner; server[shard[1].owner].decided = 0; takeovers++; take_over() }
    :: d_step { takeovers < TAKEOVERS && (due_confirm & 1) && IN_SERVICE(0) ->
        old.kind = OLD_OWNERSHIP; old.slot = shard[0].owner; old.serves = (at == 0); takeovers++; take_over() }
    :: d_step { takeovers < TAKEOVERS && (due_confirm & 2) && IN_SERVICE(1) ->
        old.kind = OLD_OWNERSHIP; old.slot = shard[1].owner; old.serves = (at == 1); takeovers++; take_over() }
    :: d_step { takeovers < TAKEOVERS -> takeovers++; take_over() }
    :: d_step { old.kind != NO_COMMAND -> receive_old_command() }

    :: d_step { SETTLED -> check_end() } -> break
    od
}
