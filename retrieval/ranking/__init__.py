"""Ranks statements by how well they answer a question: a small encoder that reads passages once, beforehand."""
