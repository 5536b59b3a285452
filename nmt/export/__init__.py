"""Models for other programs: to CTranslate2 and Hugging Face, with a parity check, and back from Marian's format."""
