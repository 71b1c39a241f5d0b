"""Configuration of the documentation; `make docs` builds it with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from troop import __version__

project = "Troop"
author = "The Troop authors"
copyright = "2026, The Troop authors"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "troop_docs.extension"]
exclude_patterns = ["_build", "_ext"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "Troop"
html_show_sourcelink = False
copybutton_prompt_text = "$ "

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

# Types of other libraries have no pages here. Links between pages and to headings are checked.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]
