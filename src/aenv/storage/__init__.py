"""Records with compare-and-set and expiry, and blobs by digest. It knows nothing of what is kept in it."""
