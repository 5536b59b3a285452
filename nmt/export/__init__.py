"""Conversion of models: to CTranslate2 and Hugging Face with a parity check, and from Marian."""
