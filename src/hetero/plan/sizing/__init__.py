"""What a workload needs: memory, ideal work, which devices to take, and how to share a model between them."""
