"""What every side agrees on: errors, configuration, directions, replay, frames, ledger, tasks."""
