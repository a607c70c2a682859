"""Forward engines, which compute the scores of prompts under perturbations."""
