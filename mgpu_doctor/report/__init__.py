"""Renderers: each turns a Diagnosis into one form and judges nothing."""
