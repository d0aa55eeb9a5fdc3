"""Run one compiled launch: its memory, its blocks, its access log, and the explanation of its errors."""
