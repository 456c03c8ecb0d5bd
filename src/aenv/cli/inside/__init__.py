"""Commands of ``aenv instance`` that work inside an instance: shell, exec, files, ports."""
