"""Look-ups: what only another system of the company knows ("where is my order?"), without a language model."""
