"""System calls that Python does not offer, the seccomp filter, and ptrace."""
