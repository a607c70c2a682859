"""Files that a crash leaves whole: kept files, blobs, events, archives."""
