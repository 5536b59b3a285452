"""Translation that keeps markup, numbers, URLs, e-mail addresses and placeholders."""
