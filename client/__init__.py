"""The device side: a session that catches up, trains by zeroth-order steps and reports scalars."""
