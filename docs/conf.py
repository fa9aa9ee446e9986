"""How Sphinx makes the site from the pages in this folder: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

from shoal.core.version import VERSION  # noqa: E402

project = "Shoal"
author = "The Shoal authors"
copyright = "the Shoal authors; Apache-2.0"
version = release = VERSION

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_design", "sphinx_copybutton", "repository", "docstrings"]
exclude_patterns = ["_*", "**/.ipynb_checkpoints", "tutorials/*.md"]  # their notebooks are shown: build_tutorials.py
nb_execution_mode = "off"
nitpicky = False  # types in signatures are not all documented; links in the pages are checked anyway

myst_enable_extensions = ["html_image", "deflist", "colon_fence"]
myst_heading_anchors = 4  # as on GitHub

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries = False

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "Shoal"
html_static_path = ["_static"]
html_css_files = ["shoal.css"]
html_js_files = ["gallery.js"]
html_copy_source = False
html_domain_indices = False  # the index of all names is enough
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6b74", "color-brand-content": "#0b6b74"},
    "dark_css_variables": {"color-brand-primary": "#5cc6cf", "color-brand-content": "#5cc6cf"},
}
