/* Representation of numbers in a trace: any number of pushes of one worker, and three shards, of whose processes six may
 * outlive their places.
 *
 * A set of pushes is its highest number: a worker's pushes are applied in order, and what a set lacks below is counted
 * in `skipped`.
 */
#define SHARDS 3
#define SHARD_BITS 2
#define PLACES 6
#define SLOTS 12
#define SLOT_BITS 4
#define OWNER_BITS 4
#define WORKERS 1
#define NONE 15                                        /* no slot */

#define PUSHES(name) short name
#define HAS(pushes, w, seq) ((pushes) >= (seq))
#define ADD(pushes, w, seq) pushes = (seq)
#define COVERED(pushes, applied, skipped) ((pushes) <= (applied) || (pushes) <= (skipped))

#define NUMBER(name) short name
#define LEDGER(name) short name
#define LAST(ledger, w) (ledger)
#define SET_LAST(ledger, w, number) ledger = number

#define MOST_QUEUED 200
#define JOURNAL short records[200]                     /* the oldest first: twice the push, and one more for a base */
#define LENGTH(name) byte name
#define APPEND(p, w, seq, names_base)                                                                                 \
    server[p].records[server[p].queued] = 2 * (seq) + names_base;                                                     \
    server[p].queued = server[p].queued + 1
#define TAKE_OLDEST(p)                                                                                                \
    w_ = 0;                                                                                                           \
    number_ = server[p].records[0] / 2;                                                                               \
    base_ = server[p].records[0] % 2;                                                                                 \
    server[p].queued = server[p].queued - 1;                                                                          \
    i_ = 0;                                                                                                           \
    do                                                                                                                \
    :: i_ < server[p].queued -> server[p].records[i_] = server[p].records[i_ + 1]; i_++                               \
    :: else -> break                                                                                                  \
    od;                                                                                                               \
    server[p].records[i_] = 0
