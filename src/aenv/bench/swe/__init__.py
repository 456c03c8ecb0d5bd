"""SWE-bench: issues of real repositories, solved by patches, graded by their tests and the benchmark's own rules."""
