"""Services of the operating system for every process: clock, log, console, CPU affinity, atomic files."""
