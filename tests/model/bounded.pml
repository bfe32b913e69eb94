/* Sizes of the exhaustive searches, and how they represent numbers: two workers, and a set of pushes is a bit for each. */
#ifndef FIRST
#define FIRST 2
#endif
#define SHARDS 2
#define SHARD_BITS 1
#define SLOTS 4
#define SLOT_BITS 2
#define OWNER_BITS 3
#define WORKERS 2
#define NONE 4                                         /* no slot */
#define ID(w, seq) ((w) == 0 -> (seq) - 1 : FIRST)     /* of a push, 0 .. FIRST */
#define COUNT(w) ((w) == 0 -> FIRST : 1)               /* pushes of a worker */

#define PUSHES(name) unsigned name : 3                 /* a set of pushes */
#define HAS(pushes, w, seq) ((pushes) & BIT(ID(w, seq)))
#define ADD(pushes, w, seq) pushes = pushes | BIT(ID(w, seq))
#define COVERED(pushes, applied, skipped) (((pushes) & ~((applied) | (skipped))) == 0)

#define NUMBER(name) unsigned name : 2                 /* of a push of one worker */
#define LEDGER(name) unsigned name : 4                 /* a number for each worker */
#define LAST(ledger, w) (((ledger) >> (2 * (w))) & 3)
#define SET_LAST(ledger, w, number) ledger = (ledger & ~(3 << (2 * w))) | (number << (2 * w))

#define JOURNAL unsigned records : 12                  /* three bits each, the newest lowest: push, and 4 for a base */
#define LENGTH(name) unsigned name : 3
#define MOST_QUEUED 4
#define APPEND(p, w, seq, names_base)                                                                                 \
    server[p].queued = server[p].queued + 1;                                                                          \
    server[p].records = (server[p].records << 3) | (ID(w, seq) + 4 * names_base)
#define TAKE_OLDEST(p)                                                                                                \
    server[p].queued = server[p].queued - 1;                                                                          \
    id_ = (server[p].records >> (3 * server[p].queued)) & 7;                                                          \
    server[p].records = server[p].records & (BIT(3 * server[p].queued) - 1);                                          \
    w_ = ((id_ & 3) == FIRST -> 1 : 0);                                                                               \
    number_ = (w_ == 0 -> (id_ & 3) + 1 : 1);                                                                         \
    base_ = id_ >> 2
