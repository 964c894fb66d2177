"""Batch sizes and the order of work where every device takes records at its own pace."""
