"""What an environment's module imports: declarations, signatures, content, private files, program runs."""
