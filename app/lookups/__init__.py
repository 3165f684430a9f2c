"""Look-ups: answers from another system of the company ("where is my order?"), without a language model."""
