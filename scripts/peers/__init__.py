"""What scripts/ needs of other engines: the same weights in their files, and their answers."""
