"""The model zoo: one file an architecture, and the registry of their names."""
