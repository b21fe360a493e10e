"""Label issues to annotation tools, and people's decisions back: one file per tool."""
