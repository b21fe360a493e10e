"""Dataset audit: pure functions over labels, probabilities, features, images, texts and columns."""
