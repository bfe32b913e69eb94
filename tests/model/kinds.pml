/* Kinds of the events of a trace, and what their fields are: `slot [number] (flag, other)`. Slot is that of the process
 * in which the event takes place; SHARD means that it is the number of a shard; 15: none. `tests/conformance` reads this.
 */
#define START 0         /* SHARD has the segment (exchanges: pushes are, set: there is a snapshot set) */
#define STOP 1          /* the end */
#define LEARN 2         /* the worker learns another placement */
#define BEGIN 3         /* the worker sends [push] to slot (base: naming its number) */
#define BREAK 4         /* that call ends without an acknowledgement */
#define ACKNOWLEDGE 5   /* slot acknowledges [push], and the worker receives that */
#define APPLY 6         /* slot counts [push] (base, new: not a duplicate) */
#define COPY 7          /* slot copies the segment for its follower [last push] */
#define MARK 8          /* slot has sent all to its follower: in sync */
#define RECORD 9        /* the follower, slot, applies the record of [push] (base, new) */
#define LOSE 10         /* slot loses its follower */
#define END 11          /* slot ends */
#define COMMAND 12      /* slot accepts a command (newest: of the coordinator that leads) */
#define LINK 13         /* slot executes a command about its follower [its slot] (followed, decided: the newest) */
#define RECOVER 14      /* the owner of SHARD becomes it [last push] (promoted, fenced: the worker) */
#define SEND 15         /* slot sends the segment to SHARD [SHARD] (arrives) */
#define SERVE 16        /* slot is told what it owns (owns: the segment) */
#define FENCE 17        /* slot refuses the worker from now on */
#define READ 18         /* slot's ledger of the worker may be read [last push] */
#define JOIN 19         /* registry: a process joins; one that is there yet loses its place (owner: as its shard's owner) */
#define FAIL 20         /* registry: slot has ended or failed (promoted: its peer is, led: it was the owner) */
#define FOLLOW 21       /* registry: SHARD gets a follower */
#define WHOLE 22        /* registry: SHARD's follower is in sync */
#define DETACH 23       /* registry: SHARD has no follower any more */
#define PLACE 24        /* registry: SHARD is in service */
#define RESHARD 25      /* registry: resharding (begins: else it has ended) */
#define MOVE 26         /* registry: SHARD has the segment now */
#define DEAD 27         /* registry: the worker is declared failed */
#define SETTLE 28       /* registry: its ledger was read */
#define TAKE_OVER 29    /* registry: another coordinator leads */
#define REMOVE 30       /* registry: SHARD has no place any more */
#define SAVED 31        /* registry: there is a snapshot set; before, initial values are pushed again after a failure */
