/* Actions of the shard process in slot p, and of its failure: options of a do loop, with p defined as the slot. */
/* FollowerMessages: the copy of the segment, then records, then the mark that all is sent. */
:: d_step { server[p].link == CATCHING_UP && !server[p].copied && STREAM(p) ->
    server[p].copied = 1; copy_segment(p, (p ^ 1)) }
:: d_step { server[p].link == CATCHING_UP && server[p].copied && STREAM(p) ->
    server[p].link = IN_SYNC; server[p].mark = server[p].queued;
    if
    :: !server[p].mark -> report_follower(p)
    :: else -> skip
    fi }
/* apply(shard, segment, record) at the follower, and ReplicationLink.acknowledged */
:: d_step { ACTIVE(p) && server[p].queued && STREAM(p) ->
    server[p].queued = server[p].queued - 1;
    id_ = (server[p].records >> (3 * server[p].queued)) & 7;
    server[p].records = server[p].records & (BIT(3 * server[p].queued) - 1);
    w_ = ((id_ & 3) == FIRST -> 1 : 0);
    number_ = (w_ == 0 -> (id_ & 3) + 1 : 1);
    count_push((p ^ 1), w_, number_, (id_ >> 2));
    if
    :: now[0].used && now[0].applied && now[0].to == p && now[0].behind -> now[0].behind = now[0].behind - 1
    :: else -> skip
    fi;
    if
    :: now[1].used && now[1].applied && now[1].to == p && now[1].behind -> now[1].behind = now[1].behind - 1
    :: else -> skip
    fi;
    if
    :: server[p].mark ->
        server[p].mark = server[p].mark - 1;
        if
        :: !server[p].mark -> report_follower(p)
        :: else -> skip
        fi
    :: else -> skip
    fi }
:: d_step { ACTIVE(p) && (!STREAM(p) || cuts < CUTS) ->
    if
    :: STREAM(p) -> cuts++; server[p ^ 1].stream = 0
    :: else -> skip
    fi;
    lose_link(p) }
/* A failure: the process ends; or it is declared failed, and continues until the reply to its next heartbeat. */
:: d_step { MAY_FAIL(p) && ALIVE(p) && IS_MEMBER(p) -> crashes++; end_process(p) }
:: d_step { MAY_FAIL(4 + p) && ALIVE(p) && IS_MEMBER(p) -> crashes++; declare_failed(p) }
:: d_step { !ALIVE(p) && IS_MEMBER(p) -> declare_failed(p); join(p) }
:: d_step { ALIVE(p) && !IS_MEMBER(p) -> end_process(p); join(p) }
