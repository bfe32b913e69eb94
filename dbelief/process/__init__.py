"""What every process needs of its operating system: clock, log, console, processors, atomic files."""
