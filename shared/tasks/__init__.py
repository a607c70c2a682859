"""Tasks as data: kinds, catalog, examples, partitions, objectives and metrics."""
