"""Reciprocal and latent attention: forward, backward and one token, in float32 and on tensor cores."""
