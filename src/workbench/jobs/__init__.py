"""Jobs of a Declarative Automation Bundle, run and scheduled on a laptop."""
