"""Episodes of TAU2-Bench for trainers."""
