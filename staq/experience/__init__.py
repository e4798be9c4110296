"""The first act: what is collected under π_k, and how it is kept."""
