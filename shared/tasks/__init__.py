"""Tasks as data: catalog, reading, partition, objectives, metrics."""
