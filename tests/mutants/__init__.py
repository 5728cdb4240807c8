"""Deliberately broken backends: each breaks one rule, and the kit must find it by the test that names the rule."""
