"""Fork a running instance: leave the event loop, find what cannot be carried, and go on in both copies."""
