"""What a client answers: sessions, frames, and the trainer service."""
