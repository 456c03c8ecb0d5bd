"""Instances: records, admission, creation, expiry, handover and how each ended."""
