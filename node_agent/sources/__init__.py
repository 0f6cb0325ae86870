"""Turns a declared model source into files on this machine.

Downloads only what an engine was declared to serve; a request's model name never reaches it.
"""
