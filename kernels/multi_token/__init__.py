"""The multi-token layer: forward, backward and one token."""
