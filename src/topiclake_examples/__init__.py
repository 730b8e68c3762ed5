"""The pipelines of five articles, on public names of Topiclake alone, as in a user's own package."""
