"""Names that existing code imports from here; the server itself lives in ``aenv.runtime``."""
