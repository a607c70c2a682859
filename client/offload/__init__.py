"""First-order training with the optimizer on the host: schedule, link, and their times."""
