"""Live clients: the processes, checks and settings of `samara client up`."""
