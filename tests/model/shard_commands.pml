/* Actions of the coordinator about shard s: options of a do loop, with s defined as its number. */
/* ReplicationManager.leader_reported, of a lost follower */
:: d_step { IN_SERVICE(s) && shard[s].followed && server[shard[s].owner].decided && !ACTIVE(shard[s].owner) ->
    detach(s) }
:: d_step { CAN_FOLLOW(s) -> decide_follower(s) }
/* EffectExecutor._attach_follower and _detach_follower */
:: d_step { (due_link & BIT(s)) && IN_SERVICE(s) && !(shard[s].followed && !ALIVE(shard[s].owner ^ 1)) ->
    due_link = due_link & ~BIT(s); execute_link(s) }
:: d_step { (due_link & BIT(s)) && !shard[s].available -> due_link = due_link & ~BIT(s) }
:: d_step { CAN_RECOVER(s) -> recover(s, 0, dead); put_in_service(s) }
:: d_step { (due_confirm & BIT(s)) && !(s && (due_confirm & 1)) && IN_SERVICE(s) && !transfer ->
    confirm_ownership(s) }
:: d_step { (due_confirm & BIT(s)) && !shard[s].available -> due_confirm = due_confirm & ~BIT(s) }
