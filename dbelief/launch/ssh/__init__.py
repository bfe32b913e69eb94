"""A job on hosts that are reached by OpenSSH: no scheduler, and no agent of ours."""
