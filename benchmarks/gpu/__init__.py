"""All measurements that need a GPU, in parts, by one command."""
