"""A script with a training loop of its own as a replica of a job, independent of any framework.

`job.join` gives the script its job, `membership` asks for leases and evaluations, `sampler` draws leased samples,
`drawn` keeps account of what is drawn and stepped, `progress` reports it, and `user_code` names the script's lines in
errors. `dbelief.torch` builds on it.
"""
