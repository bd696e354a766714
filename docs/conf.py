"""Configuration of the documentation site, which tools/docs.sh builds with Sphinx.

The pages are the Markdown files of docs/, which are also read on their own, with relative links.
Nothing is fetched when the site is built or read: theme, scripts and search are local.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "site"))

project = "Cairn"
author = "The authors of Cairn"
html_show_copyright = False
html_title = "Cairn"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings", "headers",
              "links"]
exclude_patterns = ["site"]
nitpicky = False
default_role = "code"
highlight_language = "text"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["site/static"]
html_css_files = ["cairn.css"]
pygments_dark_style = "github-dark"  # the default of the theme underlines imported names

myst_enable_extensions = []
myst_heading_anchors = 4

# Public names only, in the order of __all__ or of the source. Libraries that only the integrations
# need are replaced by mocks, so that the site is the same whether they are installed or not.
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "inherited-members": "object, int, BaseException",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["accelerate", "deepspeed", "diffusers", "jax", "megatron", "orbax", "peft",
                        "ray", "torchtitan", "transformers"]  # fmt: skip
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
