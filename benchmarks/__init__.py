"""What was measured, as programs; ``samara bench`` runs those that need no data."""
