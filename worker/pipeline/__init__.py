"""What runs beside the computation: threads that fetch and push, buffers, batches, measured phases."""
