"""People judge label issues on a local page, and what becomes of their decisions."""
