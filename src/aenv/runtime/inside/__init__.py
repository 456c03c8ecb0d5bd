"""Commands and files inside an instance, for callers with its token. Imported on first use."""
