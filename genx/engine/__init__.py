"""Runs a model for a person: settings with their origin, and one prompt as a stream of events."""
