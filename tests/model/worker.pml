/* Actions of worker w and of the fence that ends it: options of a do loop, with w defined as its number. */
/* With the newest placement; only where the owner serves: otherwise the reply is Moved, and the worker as it was. */
:: d_step { worker[w].state == READY && IN_SERVICE(at) && server[shard[at].owner].holds == SERVED ->
    begin_push(w, shard[at].owner) }
:: d_step { now[w].used && !now[w].applied -> deliver(now[w], w, 1) }
:: d_step { late[w].used -> deliver(late[w], w, 0); clear_message(late[w]) }
:: d_step { CAN_ACKNOWLEDGE(w) -> acknowledge(w) }
/* A timeout, once another process owns the segment; or a connection that breaks. */
:: d_step { now[w].used && now[w].applied && (shard[at].owner != now[w].to || server[now[w].to].holds != SERVED) ->
    break_call(w) }
:: d_step { now[w].used && !late[w].used && cuts < CUTS ->
    cuts++;
    if
    :: !now[w].applied ->
        late[w].used = 1; late[w].to = now[w].to; late[w].seq = now[w].seq; late[w].base = now[w].base
    :: else -> skip
    fi;
    break_call(w) }
/* It is declared failed, and ends or continues. */
:: d_step { MAY_FAIL(8 + w) && !(dead & BIT(w)) && worker[w].state < DONE ->
    crashes++; dead = dead | BIT(w); due_fence = due_fence | BIT(w) }
:: d_step { (dead & BIT(w)) && worker[w].state < DONE && !now[w].used -> worker[w].state = ENDED }
/* Both shards are fenced, then the ledger is read. */
:: d_step { (due_fence & BIT(w)) && !(fencing & BIT(w)) && IN_SERVICE(0) && IN_SERVICE(1) && !transfer &&
            !due_confirm ->
    fencing = fencing | BIT(w);
    received_command(shard[0].owner);
    received_command(shard[1].owner);
    fence(shard[0].owner, w);
    fence(shard[1].owner, w) }
:: d_step { (due_fence & BIT(w)) && (fencing & BIT(w)) && IN_SERVICE(0) && IN_SERVICE(1) && !transfer &&
            !due_confirm && FENCE_DONE(shard[at].owner) ->
    settle(w, shard[at].owner) }
