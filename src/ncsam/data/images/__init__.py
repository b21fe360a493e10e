"""Image files: listed, decoded, turned upright and cached."""
