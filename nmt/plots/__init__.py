"""Pictures: how a training run went, and what a model looks at."""
