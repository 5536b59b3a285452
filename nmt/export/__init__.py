"""Models that travel: to CTranslate2 and Hugging Face, and from Marian's format back; each export proves itself."""
