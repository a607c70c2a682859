"""A live client's connection to its server: a SuperNode, or a gateway's stream."""
