"""The reserved keys of a step that contains a model of Hugging Face (docs/import-export.md)."""

FILES = "__files__"
WEIGHTS = "__weights__"
