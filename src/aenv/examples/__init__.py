"""Programs that others import by name: trainers are configured with such names."""
