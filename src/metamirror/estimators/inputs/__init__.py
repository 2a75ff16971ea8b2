"""Images and folders, turned into arrays."""
