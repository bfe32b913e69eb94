/* Actions of the coordinator about shard s: options of a do loop, with s defined as its number. */
/* ReplicationManager.leader_reported, of a lost follower; ReplicationManager.advance */
:: d_step { IN_SERVICE(s) && shard[s].followed && server[shard[s].owner].decided && !ACTIVE(shard[s].owner) ->
    detach(s) }
:: d_step { CAN_FOLLOW(s) ->
    shard[s].followed = 1;
    if
    :: server[shard[s].owner].holds == ABSENT -> execute_link(s)        /* nothing that another step could see */
    :: else -> server[shard[s].owner].decided = 0; due_link = due_link | BIT(s)
    fi }
/* EffectExecutor._attach_follower and _detach_follower */
:: d_step { (due_link & BIT(s)) && IN_SERVICE(s) && !(shard[s].followed && !ALIVE(shard[s].owner ^ 1)) ->
    due_link = due_link & ~BIT(s); execute_link(s) }
:: d_step { (due_link & BIT(s)) && !shard[s].available -> due_link = due_link & ~BIT(s) }
/* ShardClient.recover; Recovery.shard_recovered */
:: d_step { (due_recover & BIT(s)) && shard[s].owner != NONE && ALIVE(shard[s].owner) &&
            IS_MEMBER(shard[s].owner) ->
    q_ = shard[s].owner;
    due_recover = due_recover & ~BIT(s);
    received_command(q_);
    server[q_].state = LEADS;
    server[q_].stream = 0;
    server[q_].decided = 1;
    server[q_].fenced = server[q_].fenced | dead;
    if
    :: shard[s].promoted ->
        server[q_].based = 0;
        check_promoted(q_, s);
        commit_ownership(q_, at == s)
    :: else ->
        drop_segment(q_);
        if
        :: at == s -> server[q_].holds = SERVED; restored = 1
        :: else -> skip
        fi
    fi;
    begin_link(q_, UNREPLICATED);
    shard[s].available = 1; shard[s].promoted = 0; placement_changed() }
/* ShardClient.set_ownership */
:: d_step { (due_confirm & BIT(s)) && !(s && (due_confirm & 1)) && IN_SERVICE(s) && !transfer ->
    due_confirm = due_confirm & ~BIT(s);
    received_command(shard[s].owner);
    commit_ownership(shard[s].owner, at == s) }
:: d_step { (due_confirm & BIT(s)) && !shard[s].available -> due_confirm = due_confirm & ~BIT(s) }
