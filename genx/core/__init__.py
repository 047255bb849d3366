"""What every model shares: the loop, the cache, sampling and the building blocks. Knows no model by name."""
