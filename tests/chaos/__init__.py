"""Faults at named points of a real training on real services, and the proof that nothing was lost."""
