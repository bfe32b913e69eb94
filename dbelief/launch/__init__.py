"""Process launch: a complete cluster, with members on this machine or others, and one supervised child process."""
