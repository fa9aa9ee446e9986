"""How processes are started and talk to each other: threads in a process, or Ray."""
