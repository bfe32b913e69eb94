/* Actions of the shard process in slot p, and of its failure: options of a do loop, with p defined as the slot. */
:: d_step { CAN_SEND_COPY(p) -> send_copy(p) }
:: d_step { CAN_SEND_MARK(p) -> send_mark(p) }
:: d_step { CAN_REPLICATE(p) -> replicate(p) }
:: d_step { ACTIVE(p) && (!STREAM(p) || cuts < CUTS) ->
    if
    :: STREAM(p) -> cuts++; server[p ^ 1].stream = 0
    :: else -> skip
    fi;
    lose_link(p) }
/* A failure: the process ends; or it is declared failed, and continues until the reply to its next heartbeat. */
:: d_step { MAY_FAIL(p) && ALIVE(p) && IS_MEMBER(p) -> crashes++; end_process(p) }
:: d_step { MAY_FAIL(4 + p) && ALIVE(p) && IS_MEMBER(p) -> crashes++; declare_failed(p) }
:: d_step { !ALIVE(p) && IS_MEMBER(p) -> declare_failed(p); join(p, 1) }
:: d_step { ALIVE(p) && !IS_MEMBER(p) -> end_process(p); join(p, 1) }
