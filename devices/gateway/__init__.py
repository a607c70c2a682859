"""The gateway: phones, boards and browsers attach to it, and it passes tasks on to them."""
