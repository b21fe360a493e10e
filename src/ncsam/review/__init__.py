"""People judge suspects on a local page, and what becomes of their decisions."""
