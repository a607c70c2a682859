"""What runs say: on the terminal, and as a page."""
