"""Formats of other programs: exports that they read, and imports of what they wrote.

One module per format. None needs the other program's package; parquet and datasets need pyarrow.
"""
