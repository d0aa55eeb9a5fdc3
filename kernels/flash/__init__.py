"""Flash attention: one thread a query, one warp a query, and on tensor cores."""
