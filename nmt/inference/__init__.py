"""What makes search fast and is not the model: prepacked and 8-bit weights, and recorded steps with their buffers."""
