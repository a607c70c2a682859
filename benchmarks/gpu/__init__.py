"""All measurements that need a GPU, divided into parts and started by one command."""
