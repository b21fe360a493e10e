"""Parameters and gradients as vectors: arithmetic and norms over devices, shards and ranks; saved and put back."""
