"""Several processes: of one training, of one translation, and of one run's folder."""
