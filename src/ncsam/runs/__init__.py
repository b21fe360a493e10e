"""Run folders: which files they hold (`layout`), and how these are locked, written and read. Nothing here trains."""
