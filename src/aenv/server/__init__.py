"""Import paths of version 0.1; the server is in ``aenv.runtime``."""
