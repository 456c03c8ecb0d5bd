"""Packed hosts: pods that each run the native engine, and hold many instances."""
