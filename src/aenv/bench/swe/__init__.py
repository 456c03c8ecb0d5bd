"""SWE-bench: issues of real repositories, solved by patches and graded by the benchmark's tests and rules."""
