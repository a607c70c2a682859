"""Storage and transfer of model blocks that are not in memory."""
