"""Label issues: scores, posteriors and tables from labels and out-of-sample probabilities; nothing here trains."""
