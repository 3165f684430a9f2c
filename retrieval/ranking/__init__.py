"""Ranks statements by how well they answer a question, with a small encoder that reads each passage
once, in advance.
"""
