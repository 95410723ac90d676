"""Clients that read and write the same few rows while things break, and a judgement over all that
they saw.
"""
