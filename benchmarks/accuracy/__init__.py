"""How accurate the models become, and what decides it."""
