"""Commands to run agents on benchmarks."""
