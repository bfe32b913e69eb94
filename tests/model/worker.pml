/* Actions of worker w and of the fence that ends it: options of a do loop, with w defined as its number. */
/* ShardedParameterClient._begin, with the newest placement; only where the owner serves: otherwise the reply is
   Moved, and the worker as it was. */
:: d_step { worker[w].state == READY && IN_SERVICE(at) && server[shard[at].owner].holds == SERVED ->
    now[w].used = 1; now[w].to = shard[at].owner; now[w].seq = worker[w].seq;
#ifndef PLANT_FORGET_BASE
    now[w].base = !worker[w].same && worker[w].seq > 1;
#endif
    worker[w].same = 0; worker[w].fresh = worker[w].seq < COUNT(w); worker[w].state = WAITING }
:: d_step { now[w].used && !now[w].applied -> deliver(now[w], w, 1) }
:: d_step { late[w].used -> deliver(late[w], w, 0); clear_message(late[w]) }
/* PushCall.handle_reply */
:: d_step { now[w].used && now[w].applied && REPLICATED(now[w].to, now[w].behind) ->
    acked = acked | BIT(ID(w, now[w].seq));
    clear_message(now[w]);
    worker[w].same = worker[w].fresh; worker[w].fresh = 0;
    if
    :: worker[w].seq == COUNT(w) -> worker[w].state = DONE
    :: else -> worker[w].seq = worker[w].seq + 1; worker[w].state = READY
    fi }
/* A timeout, once another process owns the segment; or a connection that breaks. */
:: d_step { now[w].used && now[w].applied && (shard[at].owner != now[w].to || server[now[w].to].holds != SERVED) ->
    clear_message(now[w]); worker[w].state = READY }
:: d_step { now[w].used && !late[w].used && cuts < CUTS ->
    cuts++;
    if
    :: !now[w].applied ->
        late[w].used = 1; late[w].to = now[w].to; late[w].seq = now[w].seq; late[w].base = now[w].base
    :: else -> skip
    fi;
    clear_message(now[w]); worker[w].state = READY }
/* It is declared failed, and ends or continues. */
:: d_step { MAY_FAIL(8 + w) && !(dead & BIT(w)) && worker[w].state < DONE ->
    crashes++; dead = dead | BIT(w); due_fence = due_fence | BIT(w) }
:: d_step { (dead & BIT(w)) && worker[w].state < DONE && !now[w].used -> worker[w].state = ENDED }
/* EffectExecutor._fence: both shards refuse its pushes; once that is replicated, its ledger is read and settled. */
:: d_step { (due_fence & BIT(w)) && !(fencing & BIT(w)) && IN_SERVICE(0) && IN_SERVICE(1) && !transfer &&
            !due_confirm ->
    fencing = fencing | BIT(w);
    received_command(shard[0].owner);
    received_command(shard[1].owner);
#ifndef PLANT_SETTLE_UNFENCED
    server[shard[0].owner].fenced = server[shard[0].owner].fenced | BIT(w);
    server[shard[1].owner].fenced = server[shard[1].owner].fenced | BIT(w)
#endif
    }
:: d_step { (due_fence & BIT(w)) && (fencing & BIT(w)) && IN_SERVICE(0) && IN_SERVICE(1) && !transfer &&
            !due_confirm && REPLICATED(shard[at].owner, server[shard[at].owner].queued) &&
            server[shard[at].owner].link != LOST ->
    due_fence = due_fence & ~BIT(w);
    fencing = fencing & ~BIT(w);
    settled = settled | BIT(w);
    final = (final & ~(3 << (2 * w))) | (LAST(shard[at].owner, w) << (2 * w)) }
