"""First-order training with the optimizer on the host: projectors, updates, schedule, link."""
