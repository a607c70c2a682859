"""The ledger of a track: base model + ledger = the fine-tuned model (docs/reference/ledger.md)."""
