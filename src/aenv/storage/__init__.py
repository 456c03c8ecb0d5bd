"""Record stores with compare-and-set and expiry, and content-addressed blob stores, independent of their content."""
