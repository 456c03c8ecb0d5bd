"""Work inside an instance: processes, files and ports, and their blocking versions."""
