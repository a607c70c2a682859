"""How fast steps, replay and block streaming are, as ratios measured side by side."""
